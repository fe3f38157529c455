"""ROS 1: bags of format 2.0, and conversion of ROS 1 messages to ROS 2."""
