"""Diagnostics and warnings of the fusion node: topics, streams and ticks."""
