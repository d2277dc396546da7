"""Experiments about alerts, each run by `python -m`; the paper has nothing about them."""
