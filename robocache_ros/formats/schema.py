"""Names that several formats share: features as LeRobot names them, what is known of each tick, and the provenance."""

from __future__ import annotations

STATE, ACTION = "observation.state", "action"
IMAGES = "observation.images."  # and the name of a stream, as for all that end with a point
# A policy may read the values. The others are not below `observation.`, so that a policy does not use them as input.
WINDOW, MASK, AGES = "observation.window.", "robocache.mask.", "robocache.sample_age_ms."
# What is known of each tick: its time, and by stream the stamp, how its value was made, and the age of the sample.
TICK_COLUMNS = ("tick_ns", "stamp_ns", "valid", "age_ns")
BY_STREAM = TICK_COLUMNS[1:]
TICK, STAMP, VALID, AGE = (f"robocache.{name}" for name in TICK_COLUMNS)
PROVENANCE = "robocache.json"
