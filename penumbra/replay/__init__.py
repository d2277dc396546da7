"""Drives the real node over DDS: its process and ROS domain, bags in real time or in lockstep."""
