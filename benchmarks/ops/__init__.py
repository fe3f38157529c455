"""Measurements of the operations and of a tick on a GPU, and of peers in the same run."""
