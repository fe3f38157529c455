"""Plots of results that are compared: bars beside published and wanted figures, and rates over GPUs."""
