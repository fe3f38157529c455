"""Units of time. Every other file imports them from here."""

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
