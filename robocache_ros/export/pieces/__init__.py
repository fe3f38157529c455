"""Plan and pieces of an export: each recording is converted independently, and a dataset is merged from the pieces."""
