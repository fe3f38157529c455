"""A simulated robot without ROS: the SO-101 arm in MuJoCo, a scripted expert, and the messages that both publish."""
