"""What is computed of a batch on the device of the training."""
