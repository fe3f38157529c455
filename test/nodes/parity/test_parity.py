"""What the node publishes during a replay over real DDS is, bit for bit, what the offline run makes of the bag."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

pytest.importorskip("rclpy")
from robocache_ros.bags.reader import Bag
from robocache_ros.engine import Frames, FusionEngine, Ingest, offline
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.layout import Layout
from test.nodes.parity.live import Live, replay
from test.nodes.rig import PANDA, Rig

SPEC = Path(__file__).parents[3] / "config" / "panda_lift.yaml"
SECONDS = 3.0
AFTER_THE_LAST_CLOCK = 2  # messages of a stream that the node has received, and not counted, when a replay ends


@dataclass
class Offline:
    """The frames of an offline run."""

    spec: FusionSpec
    ticks_ns: list[int]
    rows: torch.Tensor
    media: dict[str, torch.Tensor]
    counters: dict[str, Any]


def offline_run(spec: FusionSpec, visibility: str) -> Offline:
    engine = FusionEngine(spec, unbounded=True)
    with Bag(PANDA) as bag:
        ingest = Ingest(spec, engine, bag.definitions)
        first_ns, last_ns = bag.start_ns, bag.start_ns + round(SECONDS * 1e9)
        fed = [(s.name, s.topic) for s in spec.streams]
        source = (
            (name, message.log_ns, message.data)
            for message in bag.messages({s.topic for s in spec.streams}, first_ns, last_ns)
            for name, topic in fed
            if topic == message.topic
        )
        frames: list[Frames] = list(offline.run(source, ingest, first_ns, last_ns, visibility=visibility))
    return Offline(
        spec,
        np.concatenate([f.ticks_ns for f in frames]).tolist(),
        torch.cat([f.rows() for f in frames]),
        {s.name: torch.cat([f.media[s.name] for f in frames if f.media[s.name].numel()]) for s in spec.media},
        dict(ingest.counters),
    )


def replayed(rig: Rig, given: dict[str, Any], rate: float, **options: Any) -> Live:
    """Replay the first seconds; it waits for a subscriber of each topic."""
    spec = load_spec(given)
    with Bag(PANDA) as bag:
        last_ns = bag.start_ns + round((SECONDS - 0.05) * 1e9) - spec.cut_ns  # due before the last message
    topics = tuple({feed.topic for feed in spec.feeds})
    return replay(rig, given, last_ns, rate=rate, duration_s=SECONDS, topics=topics, **options)


def undisturbed(play: Callable[[], Live], reference: Offline) -> Live:
    """A replay in which the node received each message as early as in the offline run, of at most twenty.

    The node expects that messages which were published before a message of /clock arrive before it. Where a machine is
    so busy that the transport repeats an image, this one comes after: the node counts it as late, or not at all if no
    /clock follows. One that is late in the offline run too can then miss one tick more, which has an older one. Such a
    replay shows nothing about the rows.
    """
    older: list[int] = []
    for _ in range(20):
        live = play()
        late = {name: int(counts["late"]) for name, counts in live.counters.items()}
        received = {name: int(counts["received"]) for name, counts in live.counters.items()}
        if all(
            late[name] <= counts["late"] and received[name] >= counts["received"] - AFTER_THE_LAST_CLOCK
            for name, counts in reference.counters.items()
        ) and not (older := ticks_with_older_samples(live, reference)):
            return live
    raise AssertionError(
        f"in twenty replays messages came late: {late}, {received}, older at {older}; offline: {reference.counters}"
    )


def paired(live: Live, reference: Offline) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """The ticks of a replay, and the rows of both."""
    index = {tick: row for row, tick in enumerate(reference.ticks_ns)}
    rows = live.rows
    ticks = sorted(rows)
    assert len(ticks) > 30  # a reader that stalls misses some
    assert set(ticks) <= set(index)
    return ticks, torch.stack([rows[tick] for tick in ticks]), reference.rows[[index[tick] for tick in ticks]]


def ticks_with_older_samples(live: Live, reference: Offline) -> list[int]:
    """The ticks at which a stream is older than offline, or not there."""
    columns = Layout(reference.spec).columns
    valid, age = ([i for i, column in enumerate(columns) if column.quantity == kind] for kind in ("valid", "age"))
    ticks, ours, theirs = paired(live, reference)
    older = (theirs[:, valid] > ours[:, valid]) | ((ours[:, valid] > 0) & (ours[:, age] > theirs[:, age]))
    return [ticks[row] for row in older.any(1).nonzero().flatten().tolist()]


def assert_same_rows(live: Live, reference: Offline) -> None:
    layout = Layout(reference.spec)
    ticks, ours, theirs = paired(live, reference)
    differs = (ours.view(torch.int32) != theirs.view(torch.int32)).nonzero()
    at = [
        (ticks[row], layout.columns[column].name, *(float(v[row, column]) for v in (ours, theirs)))
        for row, column in differs.tolist()
    ]
    assert not at, f"{len(differs[:, 0].unique())} of {len(ticks)} ticks differ: {at[:3]}; {live.counters}"


@pytest.fixture(scope="module")
def ideal(panda_spec):
    return offline_run(load_spec(panda_spec), "ideal")


@pytest.fixture(scope="module")
def live(tmp_path_factory, panda_spec, ideal):
    """A replay of the example spec at its own rate."""

    def play() -> Live:
        with closing(Rig(tmp_path_factory.mktemp("live"))) as rig:
            return replayed(rig, panda_spec, 1.0, media=True)

    return undisturbed(play, ideal)


def test_live_rows_equal_the_offline_run(live, panda_spec, ideal):
    assert_same_rows(live, offline_run(load_spec(panda_spec), "deployed"))
    assert_same_rows(live, ideal)  # nothing comes later than delay_ms, so that the robot sees all that there is


def test_live_images_and_voxels_equal_the_offline_run(live, ideal):
    index = {tick: row for row, tick in enumerate(ideal.ticks_ns)}
    for name in ("front", "wrist", "voxels"):
        skipped = len(ideal.ticks_ns) - len(ideal.media[name])
        same = [
            torch.equal(value, ideal.media[name][index[tick] - skipped]) for tick, value in live.media[name].items()
        ]
        assert len(same) > 50  # a reader that is slow is not waited for
        assert all(same), f"{name}: {same.count(False)} of {len(same)} ticks differ"


def test_each_window_holds_the_rows_of_the_ticks_before_it(live):
    rows = live.rows
    for tick_ns, window in live.windows:
        for back, row in enumerate(reversed(window)):
            before = rows.get(tick_ns - back * 20_000_000)
            assert torch.equal(row, torch.zeros_like(row) if before is None else before)


@pytest.mark.parametrize("eager", [True, False])
def test_eager_rows_and_best_effort_at_eight_times_the_rate_equal_the_offline_run(rig, panda_spec, eager):
    # Not eager: best effort, ten messages deep, of which a reliable replay loses nothing.
    given = panda_spec | {"emit": "eager"} if eager else yaml.safe_load(SPEC.read_text())
    reference = offline_run(load_spec(given), "deployed")

    play = partial(replayed, rig, given, 4.0 if eager else 8.0, parameters={"reliable": not eager})

    assert_same_rows(undisturbed(play, reference), reference)


def test_short_delay_marks_the_same_late_frames_as_the_deployed_run(rig, panda_spec, ideal):
    given = panda_spec | {"delay_ms": 45, "lead_ms": 15}  # the front camera takes 38 ms, the cloud 55 ms
    reference = offline_run(load_spec(given), "deployed")

    live = undisturbed(lambda: replayed(rig, given, 4.0), reference)

    assert_same_rows(live, reference)
    assert reference.counters["front"]["late"] > 30
    with pytest.raises(AssertionError, match="ticks differ"):
        assert_same_rows(live, ideal)


def test_live_windows_equal_the_offline_run(rig, panda_spec):
    joints = panda_spec["streams"]["joint_position"]
    window = {key: joints[key] for key in ("topic", "type", "names", "qos") if key in joints} | {"align": "window"}
    streams = {"arm": joints, "fast": window | {"samples": 8}, "smooth": window | {"samples": 40, "reduce": "mean"}}
    given = panda_spec | {"streams": streams}
    reference = offline_run(load_spec(given), "deployed")

    live = undisturbed(lambda: replayed(rig, given, 4.0), reference)

    assert_same_rows(live, reference)
    ages = reference.rows[:, -8:]
    assert (ages >= 0).all(dim=1).float().mean() > 0.8  # 500 Hz on 50 Hz ticks: ten samples for eight rows
    assert any("window_overflow" in counts for counts in live.counters.values())
