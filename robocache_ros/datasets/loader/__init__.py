"""Batches for training: order, workers, cache and resume."""
