"""Data sets, losses, metrics, and the one loop that trains every network of the project."""
