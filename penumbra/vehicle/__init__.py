"""Code that runs on the vehicle: without torch, and with rclpy only under `node/`."""
