"""What depends on rclpy, on its distribution and on the middleware below it."""
