"""A policy on a robot: the plan of its actions by tick, and what stops it."""
