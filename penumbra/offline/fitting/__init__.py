"""Fitting after training: gains of the variance and thresholds of the alerts."""
