"""Which action belongs to a row: offsets, deltas, and what a policy runner executed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import robocache_ros
from robocache_ros.alignments import angle, angle_deg
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.write import write_bag
from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.episodes import EpisodeTicks, Labels
from robocache_ros.formats.validate import validate
from robocache_ros.policy.outputs import Outputs
from robocache_ros.sim.simulation import bool_cdr, joint_state_cdr
from robocache_ros.spec import FusionSpec, Layout, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.run import RunOptions
from test.export.conftest import lerobot_rows, spec_of

# Labels: which action belongs to a row.

PERIOD_NS = 20_000_000


def frames_of(spec: FusionSpec, rng: np.random.Generator, count: int) -> Frames:
    width, streams = sum(Layout(spec).widths), len(spec.streams)
    valid = rng.integers(0, 3, (count, streams)).astype(np.uint8)
    fused = (200 * rng.normal(size=(count, width))).astype(np.float32)  # also more than half a turn in deg
    for stream, slot in Layout(spec).slots.items():
        fused[:, slot] *= valid[:, Layout(spec).names.index(stream), None] > 0
    age_ns = np.where(valid > 0, rng.integers(0, PERIOD_NS, (count, streams)), 0)
    image = torch.from_numpy(rng.integers(0, 255, (count, 3, 2, 2)).astype(np.uint8))
    return Frames(np.arange(count) * PERIOD_NS, torch.from_numpy(fused), valid, age_ns, {"front": image})


def labelled(labels: Labels, frames: Frames, edges: list[int]) -> list[Frames]:
    """The rows of an episode that is given in parts."""
    rows: list[Frames] = []
    for start, stop in pairwise(edges):
        found = list(labels.rows(EpisodeTicks(frames[start:stop], first=start == 0)))
        assert [ticks.first for ticks in found] == [not rows and number == 0 for number in range(len(found))]
        rows += [ticks.frames for ticks in found]
    return rows


def column(labels: Labels, rows: list[Frames], stream: str) -> np.ndarray[Any, Any]:
    slot = Layout(labels.spec).slots[stream]
    return np.concatenate([part.fused.numpy()[:, slot] for part in rows]) if rows else np.zeros((0, 2))


CASES = [
    ({}, {"action": "absolute"}),
    ({}, {"action": "delta"}),
    ({}, {"action": "delta", "action_from": ("state",)}),
    ({"command": {"label": "delta", "delta_from": "state", "align": "angle"}}, {"action": "absolute"}),
    ({"command": {"label": "delta", "align": "angle", "unit": "deg"}}, {"action": "absolute"}),
    ({"command": {"role": "observation"}}, {"action": "next-observation"}),
    ({"command": {"role": "observation", "align": "angle"}}, {"action": "next-delta"}),
]


# More than 50 lines: the definition of every action, row by row.
@given(
    case=st.sampled_from(CASES), offset=st.integers(0, 4), count=st.integers(1, 20), data=st.data(), seed=st.integers(0)
)
def test_labels_equal_their_definition(case, offset, count, data, seed):
    streams, given_options = case
    follows = given_options["action"].startswith("next-")
    options = DatasetOptions(**given_options, action_offset=offset + follows)
    spec = spec_of(**streams)
    labels, k = Labels(spec, options), offset + follows
    frames = frames_of(spec, np.random.default_rng(seed), count)
    edges = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=4))})

    rows = labelled(labels, frames, edges)

    first, stop = labels.extent(0, count)
    ticks = np.concatenate([part.ticks_ns for part in rows]).tolist() if rows else []
    assert ticks == [t * PERIOD_NS for t in range(first, max(first, stop))]  # none lost, none twice
    images = [image for part in rows for image in part.media["front"]]
    of_ticks = frames.media["front"][first : max(first, stop)]
    assert all(torch.equal(*both) for both in zip(images, of_ticks, strict=True))
    names, slots = Layout(spec).names, Layout(spec).slots
    for stream, source in zip(labels.spec.streams, [*spec.streams, *(spec.streams if follows else ())], strict=True):
        index, new = names.index(source.name), Layout(labels.spec).names.index(stream.name)
        values = column(labels, rows, stream.name)
        for row, t in enumerate(range(first, max(first, stop))):
            at = t + k if stream.role == "action" else t
            part = frames.fused.numpy()[:, slots[source.name]]
            expected, states = part[at], [int(frames.valid[at, index])]
            if stream.name.startswith("delta_"):
                from_state = follows or "state" in (*options.action_from, source.delta_from)
                minus = source.name if follows else "state"
                other = frames.fused.numpy()[t, slots[minus]] if from_state else part[at - 1]
                states.append(int(frames.valid[t, names.index(minus)] if from_state else frames.valid[at - 1, index]))
                expected = expected - other
                if source.align == "angle":
                    expected = (angle_deg if source.unit == "deg" else angle).fold(expected)
            state = max(states) if min(states) else 0
            valid, age = (np.concatenate([getattr(r, name) for r in rows])[row, new] for name in ("valid", "age_ns"))
            assert valid == state
            assert values[row].tolist() == (expected if state else expected * 0).tolist()
            stamp_ns = at * PERIOD_NS - int(frames.age_ns[at, index])
            assert age == (t * PERIOD_NS - stamp_ns if state else 0)


def test_joints_are_matched_by_name():
    joints = {"type": "sensor_msgs/msg/JointState", "topic": "/joints", "dim": None}
    command = {**joints, "names": ["c", "a"], "label": "delta", "delta_from": "state"}
    spec = spec_of(state={**joints, "names": ["a", "b", "c"]}, command=command)
    frames = frames_of(spec, np.random.default_rng(0), 1)
    frames = replace(frames, fused=torch.tensor([[1.0, 2.0, 3.0, 10.0, 20.0]]), valid=np.ones((1, 2), np.uint8))
    labels = Labels(spec, DatasetOptions())
    assert column(labels, labelled(labels, frames, [0, 1]), "delta_command").tolist() == [[7.0, 19.0]]
    assert [c.name for c in Layout(labels.spec).columns[3:5]] == ["delta_command.c", "delta_command.a"]


DELTA, FROM = {"action": "delta"}, {"action": "delta", "action_from": ("state",)}
UNITS = {"state": {"unit": "deg"}, "command": {"unit": "rad"}}


@pytest.mark.parametrize(
    ("streams", "options", "message"),
    [
        ({}, {"action": "next-observation"}, "next-observation is for recordings without commands, but command is an"),
        ({"command": {"role": "observation"}}, DELTA, "action: the spec has no action to compute deltas"),
        ({"command": {"role": "observation"}}, {"action_offset": 1}, "action_offset: the spec has no action; add role"),
        ({}, {"action_from": ("state",)}, "action_from: is for deltas and next observations, not absolute"),
        ({}, FROM | {"action_from": ("stat",)}, "action_from: stat is not an observation vector; there are"),
        ({"state": {"dim": 3}}, FROM, "has 2 values minus 3; name one of the"),
        (UNITS, FROM, "its delta from state is rad - deg; name an observation of the same unit"),
        ({"command": {"dim": 4, "align": "slerp"}}, DELTA, "has a rotation, and a difference of two is not one"),
    ],
)
def test_actions_that_the_streams_do_not_have_are_refused(streams, options, message):
    with pytest.raises(RoboCacheError, match=message):
        Labels(spec_of(**streams), DatasetOptions(**options))


def test_images_that_wait_for_their_actions_are_limited(monkeypatch):
    monkeypatch.setattr("robocache_ros.exporter.episodes.MAX_WAITING_BYTES", 40)
    labels = Labels(spec_of(), DatasetOptions(action_offset=4))
    with pytest.raises(RoboCacheError, match="action_offset: the images of 4 ticks exceed"):
        labelled(labels, frames_of(spec_of(), np.random.default_rng(0), 8), [0, 8])


@pytest.mark.parametrize(
    ("options", "rate_hz", "ticks"),
    [
        ({}, 50, 0),
        ({"action": "next-observation"}, 50, 1),
        ({"action_offset": 3}, 50, 3),
        ({"action_offset": "3"}, 50, 3),
        ({"action_offset": "40ms"}, 50, 2),
        ({"action_offset": "33 ms"}, 30, 1),
        ({"action_offset": "66.7ms"}, 30, 2),
    ],
)
def test_an_offset_is_in_ticks_or_ms(options, rate_hz, ticks):
    assert DatasetOptions(**options).offset_ticks(rate_hz) == ticks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action_offset": "50ms"}, r"action_offset: 50 ms is 2\.50 ticks of 20 ms; use whole ticks"),
        ({"action_offset": "soon"}, "action_offset: 'soon' is not an offset; write 2"),
        ({"action_offset": "1.5"}, "is not an offset"),
        ({"action_offset": -2}, "action_offset: -2 is before the row; set latency_ms"),
        ({"action_offset": 1001}, "action_offset: 1001 ticks are not possible; use 0 to 1000"),
        ({"action": "next-observation", "action_offset": 0}, "action_offset: 0 ticks are not possible; use 1 to 1000"),
        ({"action": "relative"}, "action: 'relative' is not one of absolute, delta, next-observation, next-d"),
    ],
)
def test_offsets_that_are_not_possible_are_refused(options, message):
    with pytest.raises(RoboCacheError, match=message):
        DatasetOptions(**options).offset_ticks(50)


# What a policy runner executed, as actions, and who commanded it, as a column of LeRobot datasets.

TICK_NS, TICKS, BY_OPERATOR = 20_000_000, 100, range(40, 70)
JOINTS, NAMES = "sensor_msgs/msg/JointState", ["action.a", "action.b"]
EXECUTED: dict[str, Any] = {"topic": "/policy_runner/action", "type": JOINTS, "align": "hold", "max_age_ms": 0}
SPEC: dict[str, Any] = {
    "robocache": 1,
    "streams": {
        "joints": {"topic": "/joints", "type": JOINTS, "names": ["a", "b"], "max_gap_ms": 50},
        "action": {**EXECUTED, "names": NAMES, "role": "action"},
        "by_operator": {**EXECUTED, "names": ["intervention"], "role": "intervention"},
    },
}


def commands() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(TICKS, 2)).astype(np.float32)


@pytest.fixture
def recording(tmp_path) -> Path:
    """A run whose first ticks have no command, and in which an operator takes over."""
    robot = load_spec({"robocache": 1, "streams": {"action": {**SPEC["streams"]["joints"], "role": "action"}}})
    outputs = Outputs(robot, RunOptions())
    messages = []
    for tick, row in enumerate(commands()):
        tick_ns = 10**18 + tick * TICK_NS
        messages.append(RawMessage("/joints", tick_ns, joint_state_cdr(tick_ns, ("a", "b"), row, row)))
        if tick in (0, BY_OPERATOR.start, BY_OPERATOR.stop):  # before the tick, as the runner publishes it
            messages.append(RawMessage("/policy_runner/intervention", tick_ns - 500, bool_cdr(tick in BY_OPERATOR)))
        data = outputs.executed(None if tick < 5 else row, tick_ns, intervention=tick in BY_OPERATOR)
        messages.append(RawMessage("/policy_runner/action", tick_ns + 500_000, data))
    path = tmp_path / "run"
    types = {"/joints": JOINTS, "/policy_runner/action": JOINTS, "/policy_runner/intervention": "std_msgs/msg/Bool"}
    write_bag(path, types, sorted(messages, key=lambda message: message.log_ns))
    return path


@pytest.mark.parametrize("format_", ["lerobot", "lerobot21"])
def test_executed_commands_are_the_actions_and_a_column_marks_those_of_the_operator(recording, tmp_path, format_):
    robocache_ros.export(recording, SPEC, tmp_path / "out", formats=[format_])
    rows = lerobot_rows(tmp_path / "out").to_pydict()
    ticks = [(tick_ns - 10**18) // TICK_NS for tick_ns in rows["robocache.tick_ns"]]
    assert ticks == list(range(5, TICKS))  # a tick without a command is in no episode
    assert rows["action"] == [commands()[tick].tolist() for tick in ticks]
    assert rows["intervention"] == [tick in BY_OPERATOR for tick in ticks]
    assert np.shape(rows["observation.state"]) == (TICKS - 5, 2)
    assert [str(finding) for findings in validate(tmp_path / "out") for finding in findings.found] == []


@pytest.mark.parametrize("options", [{"corrections": True}, {"episode_topic": "/policy_runner/intervention"}])
def test_corrections_alone_are_an_episode_for_each_takeover(recording, tmp_path, options):
    robocache_ros.export(recording, SPEC, tmp_path / "out", **options)
    rows = lerobot_rows(tmp_path / "out").to_pydict()
    assert [(tick_ns - 10**18) // TICK_NS for tick_ns in rows["robocache.tick_ns"]] == list(BY_OPERATOR)
    assert all(rows["intervention"])


def test_corrections_need_a_stream_that_marks_them_and_a_takeover(recording, tmp_path):
    streams = {name: stream for name, stream in SPEC["streams"].items() if name != "by_operator"}
    with pytest.raises(RoboCacheError, match="corrections: no stream has role: intervention"):
        robocache_ros.export(recording, SPEC | {"streams": streams}, tmp_path / "out", corrections=True)
    other = SPEC["streams"] | {"by_operator": SPEC["streams"]["by_operator"] | {"topic": "/no_policy_ran"}}
    with pytest.raises(RoboCacheError, match="no tick is in an episode"):
        robocache_ros.export(recording, SPEC | {"streams": other}, tmp_path / "out", corrections=True)
