"""The CUDA backend of images."""
