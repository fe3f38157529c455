"""Generators of damaged recordings, datasets, messages and specs, and what the package does with thousands of them."""
