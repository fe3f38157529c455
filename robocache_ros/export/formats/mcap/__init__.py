"""The fused stream as recordings."""
