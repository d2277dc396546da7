"""The renderer, the paper's experiments, benchmarks and endurance runs."""
