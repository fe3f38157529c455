"""The client of a fusion node."""
