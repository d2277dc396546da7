"""Readers of CamVid and KITTI, CamVid's classes, and augmentation of images; no torch."""
