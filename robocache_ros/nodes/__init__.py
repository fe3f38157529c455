"""The ROS nodes: lifecycle, parameters, diagnostics, publishers, and the client for policies."""

from robocache_ros.nodes.middleware.sourced import prefer_sourced_ros

prefer_sourced_ros()  # before any module of this package imports rclpy
