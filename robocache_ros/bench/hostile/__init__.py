"""Hostile input, made by the thousand: what the package does with it."""
