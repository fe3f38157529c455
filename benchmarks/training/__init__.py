"""How fast policies train: the step, the data, and both together."""
