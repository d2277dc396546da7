"""The networks, and the file format of their weights."""

from penumbra.offline.models.model_file import (
    ARCHITECTURES,
    ModelHeader,
    build_model,
    load_model,
    read_header,
    save_model,
)

__all__ = [
    "ARCHITECTURES",
    "ModelHeader",
    "build_model",
    "load_model",
    "read_header",
    "save_model",
]
