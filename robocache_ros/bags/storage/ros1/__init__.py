"""ROS 1: bags of format 2.0, and messages in its serialization, which are read as those of ROS 2."""
