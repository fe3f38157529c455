"""LeRobot datasets v2.1 and v3.0."""
