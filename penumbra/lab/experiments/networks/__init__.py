"""Networks as others publish them: do they propagate, how accurately, at what cost.

`python -m penumbra.lab.experiments.networks` measures and writes the table of docs/networks.md.
"""
