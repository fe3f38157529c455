"""The contents of a dataset, independent of its format."""
