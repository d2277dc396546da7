"""Speed, memory and scaling, measured as ratios within one run: `penumbra benchmark`."""
