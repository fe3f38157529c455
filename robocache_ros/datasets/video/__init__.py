"""Frames of video files."""
