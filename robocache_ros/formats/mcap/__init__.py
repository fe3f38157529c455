"""MCAP recordings of fused episodes, for plots and replay."""
