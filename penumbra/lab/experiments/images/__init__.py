"""Shared by the experiments on images: trained networks, cached samples, runtime, panels."""
