"""Validation of Delta Lake tables."""
