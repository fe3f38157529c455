"""Delta Lake tables of ticks and episodes, which grow by appends."""
