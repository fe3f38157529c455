"""Validation of LeRobot datasets, v3.0 and v2.1."""
