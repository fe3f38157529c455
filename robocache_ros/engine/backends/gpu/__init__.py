"""The GPU backend: payloads in rings on the GPU; each tick is one CUDA graph."""
