"""Camera images to tensors."""
