"""Metrics of predictions and of their uncertainty; NumPy only."""
