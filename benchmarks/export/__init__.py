"""Benchmarks of exports: against forge-robotics and against the encoders alone, and of the parts of an export."""
