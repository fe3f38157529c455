"""The storage files of recordings: MCAP, SQLite, compression, metadata.yaml, and several files as one."""
