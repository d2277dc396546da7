"""Long runs of the real node under load: `penumbra soak`."""
