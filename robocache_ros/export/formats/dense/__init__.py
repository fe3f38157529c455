"""Formats with one dense array per stream: robomimic's HDF5 file and Diffusion Policy's Zarr folder."""
