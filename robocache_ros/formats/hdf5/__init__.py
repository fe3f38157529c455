"""HDF5 trajectories of any layout, which are only read."""
