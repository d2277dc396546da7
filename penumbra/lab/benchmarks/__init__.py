"""Speed, measured as ratios within one run: `penumbra benchmark`."""
