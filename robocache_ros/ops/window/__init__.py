"""Windows: all samples since the last tick, as rows of their own or reduced to one."""
