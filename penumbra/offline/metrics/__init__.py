"""How good a prediction is, and how good its uncertainty."""
