"""RoboCache ROS."""
