"""Faults of a camera, put on purpose into ordinary images (BGR, `uint8`), in five severities.

    from penumbra.offline.faults import FAULTS, apply, apply_sequence

    faulty = apply("defocus_blur", 3, image, np.random.default_rng(0))
    drive = apply_sequence("dirt", 3, images, seed=0)      # the dirt stays where it is

The severities were fixed before anything was fitted to them and do not change: figures of different
releases have to be comparable.
"""

from penumbra.offline.faults.registry import FAULTS, SEVERITIES, Fault, apply, apply_sequence

__all__ = ["FAULTS", "SEVERITIES", "Fault", "apply", "apply_sequence"]
