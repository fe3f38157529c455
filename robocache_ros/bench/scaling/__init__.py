"""How loading, alignment and training scale with the number of GPUs."""
