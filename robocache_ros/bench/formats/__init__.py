"""One synthetic dataset in every format, and how fast the loader reads each of them."""
