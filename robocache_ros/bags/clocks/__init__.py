"""The clocks of a recording: which one its timeline follows, and how log times are carried over to it."""
