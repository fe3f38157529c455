"""Vector streams on a timeline: the selection of samples, and the blend of two of them."""
