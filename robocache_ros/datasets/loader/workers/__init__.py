"""Processes that read batches into shared memory."""
