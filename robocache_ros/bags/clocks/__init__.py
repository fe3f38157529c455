"""The clocks of a recording: selection of the timeline, and conversion of log times to it."""
