"""The consumer of a fusion node."""
