"""Measurements: what the node loses, how late and how even it is, what it costs."""
