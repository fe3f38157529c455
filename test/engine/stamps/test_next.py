"""Samples after their tick: `next` on a robot, and ages that are negative."""

import numpy as np
import pytest

from robocache_ros.engine import FusionEngine
from robocache_ros.spec import load_spec

MS = 1_000_000
T0 = 1_760_000_000 * 10**9  # a tick: full seconds are on every grid
COMMAND = {
    "topic": "/v",
    "type": "geometry_msgs/msg/Vector3Stamped",
    "field": "vector.x",
    "align": "next",
    "max_age_ms": 60,
    "role": "action",
}


def engine_of(delay_ms, **keys):
    return FusionEngine(load_spec({"robocache": 1, "delay_ms": delay_ms, "streams": {"command": {**COMMAND, **keys}}}))


def push(engine, stamp_ms, arrival_ms, number):
    engine.push("command", T0 + stamp_ms * MS, T0 + arrival_ms * MS, np.array([number], np.float32))


@pytest.mark.parametrize(
    ("delay_ms", "row"),
    [
        (12, [7.0, 1, -3.0]),  # the command was sent 3 ms after the tick, and arrived 9 ms later
        (11, [8.0, 1, -8.0]),  # it had not arrived, but the next one had
        (8, [0.0, 0, 0.0]),
    ],
)
def test_next_has_the_first_sample_after_the_tick_that_arrived_within_the_delay(delay_ms, row):
    engine = engine_of(delay_ms)
    engine.advance(T0 - MS)
    for stamp, arrival, number in ((-1, -1, 6.0), (8, 9, 8.0), (3, 12, 7.0)):
        push(engine, stamp, arrival, number)
    frames = engine.advance(T0 + delay_ms * MS)
    assert frames.rows().tolist() == [row]
    assert frames.stamps_ns.tolist() == [[T0 - round(row[2] * MS) if row[1] else 0]]


def test_next_holds_the_last_sample_live_where_the_spec_says_so():
    engine = engine_of(0, on_invalid="hold")
    engine.advance(T0 - MS)
    push(engine, -5, -4, 6.0)
    assert engine.advance(T0 + 100 * MS).rows()[-1].tolist() == [6.0, 2, 105.0]
