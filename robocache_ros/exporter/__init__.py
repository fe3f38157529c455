"""Export of recordings to datasets."""
