"""A robot's load through the fusion node to a consumer, each in a separate process."""
