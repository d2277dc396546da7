"""What makes bundles: data sets, networks, training, fitting and export (torch)."""
