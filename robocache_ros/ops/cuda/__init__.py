"""The CUDA backend: kernels compiled on first use and launched on torch's current stream."""
