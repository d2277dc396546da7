"""How well camera health finds camera faults: `python -m penumbra.lab.experiments.camera_health`.

A folder, not an experiment of `penumbra reproduce`: the paper has nothing about camera health.
"""
