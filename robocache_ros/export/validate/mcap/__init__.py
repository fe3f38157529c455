"""Validation of recordings of the fused stream."""
