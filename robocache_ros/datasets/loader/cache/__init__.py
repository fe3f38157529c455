"""The samples of a dataset that fits in memory: items packed, or the rows that windows share."""
