"""Recordings of one stream, ten seconds at 50 Hz, with messages that say what the robot does."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.bags.write import write_bag
from robocache_ros.spec import FusionSpec, load_spec

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
SECONDS, RATE_HZ = 10, 50

Events = Mapping[tuple[str, str], Iterable[tuple[float, Any]]]  # (topic, type) -> (seconds, value)


def numbers(*values: float) -> bytes:
    """A std_msgs/Float64MultiArray in CDR."""
    return b"\0\1\0\0" + struct.pack(f"<III4x{len(values)}d", 0, 0, len(values), *values)


def message(type_: str, value: Any) -> bytes:
    """A message of std_msgs in CDR."""
    name = type_.rpartition("/")[2]
    if name == "String":
        text = value.encode()
        return b"\0\1\0\0" + struct.pack(f"<I{len(text)}sB", len(text) + 1, text, 0)
    code = {"Bool": "?", "Empty": "B", "Int32": "i", "Float32": "f"}[name]
    return b"\0\1\0\0" + struct.pack(f"<{code}", value)


def spec_of(**streams: Mapping[str, Any]) -> FusionSpec:
    """A spec with /state and /command of two values each, or with the given streams alone."""
    array = {"type": "std_msgs/msg/Float64MultiArray", "dim": 2}
    default = {"state": {**array, "topic": "/state"}, "command": {**array, "topic": "/command", "role": "action"}}
    changed = {name: {**default.get(name, {}), **keys} for name, keys in streams.items()}
    changed = {name: {k: v for k, v in keys.items() if v is not None} for name, keys in changed.items()}
    return load_spec({"robocache": 1, "rate_hz": RATE_HZ, "streams": {**default, **changed}})


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Path]:
    """Writes a recording.

    Tick k has the state (k, -k) and the command (k + 100, 0), unless a function of k gives another one, or None for no
    messages.
    """

    def write(
        events: Events | None = None,
        *,
        state: Callable[[int], tuple[float, float] | None] = lambda k: (k, -k),
        command: Callable[[int], tuple[float, float] | None] = lambda k: (k + 100, 0),
        name: str = "bag",
    ) -> Path:
        messages, types = [], {}
        for topic, values in (("/state", state), ("/command", command)):
            types[topic] = "std_msgs/msg/Float64MultiArray"
            for k in range(SECONDS * RATE_HZ + 1):
                found = values(k)
                messages += [(topic, START_NS + k * 20 * MS, numbers(*found))] if found else []
        for (topic, type_), given in (events or {}).items():
            types[topic] = type_
            messages += [(topic, START_NS + round(at * 1e9), message(type_, value)) for at, value in given]
        return write_bag(tmp_path / name, types, sorted(messages, key=lambda each: each[1]))

    return write
