"""Policies: what is observed, and two ways to predict a chunk of actions from it."""
