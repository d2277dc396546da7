"""Dropout networks for the UCI regression sets: data, stacked training, likelihoods, sampling."""
