"""The benchmarks of the project, run in a checkout: `python -m benchmarks --help`."""
