"""Code that depends on rclpy, on the ROS distribution, and on the middleware."""
