"""HDF5 files whose groups are streams with stamps."""
