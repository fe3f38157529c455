"""The CUDA backend of voxels."""
