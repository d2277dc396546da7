"""What is fitted to a trained network: gains of the variance, thresholds of the alerts."""
