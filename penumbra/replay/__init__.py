"""Drives the real node over DDS: its process, its ROS domain, bags in time or in lockstep."""
