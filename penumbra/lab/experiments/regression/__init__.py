"""Dropout networks for the UCI regression sets: data, training, likelihoods, sampling."""
