"""Readers of CamVid and KITTI, and the class list of CamVid; no torch."""
