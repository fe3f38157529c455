"""The GPU backend: payloads in rings on the GPU, a tick as one CUDA graph."""
