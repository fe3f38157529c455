"""robomimic: demonstrations in an HDF5 file."""
