"""Exports that are divided: each shard converts a part of the recordings, and the last one writes the dataset."""
