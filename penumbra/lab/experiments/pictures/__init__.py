"""What the experiments on pictures share: trained networks, kept samples, runtime, panels."""
