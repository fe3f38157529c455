"""The quality report of recordings."""
