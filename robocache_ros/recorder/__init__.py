"""Recorders of episodes and of runs: files that stay readable whenever the process ends."""
