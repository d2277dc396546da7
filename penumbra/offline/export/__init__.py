"""Export of a trained network as a bundle: pre-processing, propagation and outputs in one graph."""

from penumbra.offline.export.bundle_export import (
    ExportOptions,
    export_bundle,
    export_graph,
    make_frame,
    plain_bundle,
)
from penumbra.offline.export.tolerances import tolerances_of

__all__ = [
    "ExportOptions",
    "export_bundle",
    "export_graph",
    "make_frame",
    "plain_bundle",
    "tolerances_of",
]
