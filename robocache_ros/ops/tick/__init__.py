"""One tick of the engine on the GPU."""
