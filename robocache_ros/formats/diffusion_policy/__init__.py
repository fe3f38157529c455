"""Diffusion Policy: a replay buffer in a zarr group."""
