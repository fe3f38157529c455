"""Which recordings an export is made of: paths, folders, globs and manifests."""
