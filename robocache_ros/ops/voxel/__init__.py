"""Point clouds and depth images to voxel grids."""
