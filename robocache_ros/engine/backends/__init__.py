"""Backends keep the payloads of samples and compute frames from them: one interface, a CPU and a GPU backend."""
