"""Storage files of recordings: MCAP, SQLite, compression, metadata.yaml, and merging of several files."""
