"""Files of datasets that are elsewhere: URLs of fsspec, and the local cache of what was downloaded."""
