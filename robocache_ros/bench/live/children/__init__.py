"""The child processes of a measurement: publisher, node, consumer and the naive node."""
