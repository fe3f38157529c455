"""An export as a plan and pieces: each recording is converted on its own, and a dataset is merged from the pieces."""
