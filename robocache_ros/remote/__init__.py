"""Files at URLs of fsspec, with the interface of local paths, and the local cache of what was downloaded."""
