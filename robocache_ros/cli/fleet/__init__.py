"""The command `robocache fleet`, and its output."""
