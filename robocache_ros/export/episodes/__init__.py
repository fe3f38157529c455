"""Which ticks of a recording are training data, and in which episode."""
