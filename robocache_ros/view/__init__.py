"""Recordings, datasets and runs in viewers: Rerun recordings, and layouts for Foxglove."""
