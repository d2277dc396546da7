"""The ROS 2 node: the only folder of `vehicle` that imports rclpy."""
