"""What runs on the vehicle: no torch here, and rclpy only under `node/`."""
