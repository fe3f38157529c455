"""The rclpy shell: lifecycle, parameters, diagnostics, publishers, the consumer's client."""

from robocache_ros.nodes.middleware.sourced import prefer_sourced_ros

prefer_sourced_ros()  # before any module of this package imports rclpy
