"""The CUDA backend of resampling and blending."""
