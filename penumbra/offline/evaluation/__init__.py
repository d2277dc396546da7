"""Evaluation of trained networks against ground truth (torch)."""
