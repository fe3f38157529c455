"""The CPU backend: payloads and frames in host memory."""
