"""WebDataset: shards of samples in tar files."""
