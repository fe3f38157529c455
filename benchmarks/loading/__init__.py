"""Benchmarks of datasets and of the loader."""
