"""The ROS 2 half: everything that imports rclpy, and nothing that imports torch."""
