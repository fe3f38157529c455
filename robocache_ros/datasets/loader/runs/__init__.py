"""Shuffled runs of samples, for data that is read fastest in sequence."""
