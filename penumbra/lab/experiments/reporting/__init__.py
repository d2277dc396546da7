"""Running experiments, keeping their results and writing the report: `penumbra reproduce`."""
