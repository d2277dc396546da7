"""Penumbra: perception that says, in a single pass, where it should not be trusted."""

__version__ = "0.1.0"
