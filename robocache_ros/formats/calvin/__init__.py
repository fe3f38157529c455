"""CALVIN datasets, which are only read."""
