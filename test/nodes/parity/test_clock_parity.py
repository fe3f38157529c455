"""Recordings with clocks that disagree, or with NaN: a node publishes in a replay over real DDS what is exported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("rclpy")
from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.spec import load_spec
from test.fuzz.messages import header, serialize
from test.nodes.parity.live import replay
from test.nodes.rig import clock_cdr

MS, S = 1_000_000, 1_000_000_000
LOG = 1_760_000_000 * S
POSE, ARRAY, CLOCK = "geometry_msgs/msg/PoseStamped", "std_msgs/msg/Float64MultiArray", "rosgraph_msgs/msg/Clock"
TYPES = {"/pose": POSE, "/base": POSE, "/lidar": POSE, "/command": ARRAY, "/clock": CLOCK}
Message = tuple[str, int, bytes]


def pose(stamp_ns: int, x: float) -> bytes:
    return serialize(POSE, {"header": header(stamp_ns), "pose": {"position": {"x": x}, "orientation": {"w": 1.0}}})


def messages(
    start_ns: int,
    seconds: float,
    time_of: Callable[[int], int],
    *,
    seed: int = 0,
    with_clock: bool = False,
    share_of_nan: float = 0,
) -> Iterable[Message]:
    """Poses at 50 Hz and commands at 20 Hz from a log time on, stamped by a clock and logged up to 15 ms later."""
    rng, chance = np.random.default_rng(seed), np.random.default_rng(seed + 1)

    def number() -> float:
        return float(rng.normal()) if chance.random() >= share_of_nan else np.nan

    for k in range(round(50 * seconds)):
        log = start_ns + 20 * k * MS
        delay = int(rng.integers(0, 15 * MS))
        yield "/pose", log + delay, pose(time_of(log), number())
        yield "/base", log + delay, pose(time_of(log), 0.0)
        lidar = (log - LOG) * (10**6 - 150) // 10**6 + 77 * S  # since its start, and slower by 150 ppm
        yield "/lidar", log + int(rng.integers(0, 15 * MS)), pose(lidar, float(rng.normal()))
    for k in range(round(20 * seconds)):
        yield "/command", start_ns + 50 * k * MS + 7 * MS, serialize(ARRAY, {"data": [number()]})
    if with_clock:
        for k in range(round(100 * seconds)):
            yield "/clock", start_ns + 10 * k * MS, clock_cdr(time_of(start_ns + 10 * k * MS))


def slow(log_ns: int) -> int:
    """A simulation at 0.9 of the speed."""
    return 12 * S + (log_ns - LOG) * 9 // 10


def again(log_ns: int) -> int:
    """The same after a reset."""
    return 12 * S + (log_ns - LOG - 3 * S) * 9 // 10


RECORDINGS: dict[str, list[Message]] = {
    "a device with a clock of its own, numbers that are not finite": list(
        messages(LOG, 4, lambda log: log, share_of_nan=0.05)
    ),
    "a reset": [*messages(LOG, 3, slow), *messages(LOG + 3 * S, 3, again, seed=1)],
    "a reset with /clock": [
        *messages(LOG, 3, slow, with_clock=True),
        *messages(LOG + 3 * S, 3, again, seed=1, with_clock=True),
    ],
}
QOS = {"reliability": "reliable", "depth": 5000}
SPEC: dict[str, Any] = {
    "robocache": 1,
    "rate_hz": 50,
    "delay_ms": 30,
    "streams": {
        "pose": {"topic": "/pose", "type": POSE, "field": "pose.position", "qos": QOS},
        "lidar": {"topic": "/lidar", "type": POSE, "field": "pose.position", "stamp": "device", "qos": QOS},
        "command": {"topic": "/command", "type": ARRAY, "dim": 1, "align": "hold", "qos": QOS},
    },
}


def between_jumps(rows: list[tuple[int, torch.Tensor]]) -> list[dict[int, torch.Tensor]]:
    """Rows by tick, a mapping for each time that the timeline began anew."""
    parts: list[dict[int, torch.Tensor]] = [{}]
    for tick, row in rows:
        if parts[-1] and tick <= max(parts[-1]):
            parts.append({})
        parts[-1][tick] = row
    return parts


@pytest.mark.parametrize("name", RECORDINGS)
def test_live_rows_equal_the_deployed_export(rig, name, tmp_path):
    recorded = sorted(RECORDINGS[name], key=lambda message: message[1])
    used = {topic for topic, _, _ in recorded}
    path = write_bag(tmp_path / "bag", {topic: TYPES[topic] for topic in TYPES if topic in used}, recorded)
    spec = load_spec(SPEC)
    with Bag(path) as bag:
        run = BagRun(bag, spec, visibility="deployed", trim=False)
        frames = list(run.frames())
    ticks = np.concatenate([part.ticks_ns for part in frames]).tolist()
    reference = between_jumps(list(zip(ticks, torch.cat([part.rows() for part in frames]), strict=True)))

    last_ns = ticks[-1] - spec.cut_ns - 100 * MS
    found = replay(rig, SPEC, last_ns, path, rate=4.0, topics=("/pose", "/lidar", "/command"))
    live = between_jumps([(tick, window[-1]) for tick, window in found.windows])

    assert len(live) == len(reference) == (2 if "reset" in name else 1)
    for ours, theirs in zip(live, reference, strict=True):
        assert len(ours) > 0.85 * len(theirs)
        assert set(ours) <= set(theirs)
        differ = [
            tick for tick in ours if not torch.equal(ours[tick].view(torch.int32), theirs[tick].view(torch.int32))
        ]
        assert not differ, f"{len(differ)} of {len(ours)} ticks differ, the first at {differ[0]}"
    assert found.counters["lidar"]["device_skew_ppm"]
    assert torch.cat([part.fused for part in frames]).isfinite().all()
    assert bool(run.counters["command"]["dropped:not_finite"]) == ("finite" in name)
    valid = run.valid
    assert (valid[20:-20] > 0).all(axis=1).mean() > 0.8
