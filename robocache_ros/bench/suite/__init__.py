"""All benchmarks as one suite: its parts, the state of the machine, and the comparison of two results."""
