"""Recordings: reading, writing, description, statistics and replay without a ROS installation."""
