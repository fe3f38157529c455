"""The files of datasets."""
