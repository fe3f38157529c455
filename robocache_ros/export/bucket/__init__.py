"""Exports to a bucket: pieces and datasets without rename and without locks."""
