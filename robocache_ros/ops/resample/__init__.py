"""Resampling and fusion of vector streams: the selection of samples, and the blend of two of them."""
