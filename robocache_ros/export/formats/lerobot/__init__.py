"""Export of LeRobot datasets."""
