"""What a policy runner executed, as actions, and who commanded it, as a column of LeRobot datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import robocache_ros
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.validate import validate
from robocache_ros.policy.outputs import Outputs
from robocache_ros.sim.simulation import bool_cdr, joint_state_cdr
from robocache_ros.spec import load_spec
from robocache_ros.spec.run import RunOptions

pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("rosbags")

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
def recording(tmp_path: Path) -> Path:
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


def rows_of(dataset: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = pq.read_table(next(dataset.rglob("data/*/*.parquet"))).to_pydict()
    return found


@pytest.mark.parametrize("format_", ["lerobot", "lerobot21"])
def test_executed_commands_are_the_actions_and_a_column_marks_those_of_the_operator(
    recording: Path, tmp_path: Path, format_: str
) -> None:
    robocache_ros.export(recording, SPEC, tmp_path / "out", formats=[format_])

    rows = rows_of(tmp_path / "out")
    ticks = [(tick_ns - 10**18) // TICK_NS for tick_ns in rows["robocache.tick_ns"]]
    assert ticks == list(range(5, TICKS))  # a tick without a command is in no episode
    assert rows["action"] == [commands()[tick].tolist() for tick in ticks]
    assert rows["intervention"] == [tick in BY_OPERATOR for tick in ticks]
    assert np.shape(rows["observation.state"]) == (TICKS - 5, 2)
    assert [str(finding) for findings in validate(tmp_path / "out") for finding in findings.found] == []


@pytest.mark.parametrize("options", [{"corrections": True}, {"episode_topic": "/policy_runner/intervention"}])
def test_corrections_alone_are_an_episode_for_each_takeover(
    recording: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    robocache_ros.export(recording, SPEC, tmp_path / "out", **options)

    rows = rows_of(tmp_path / "out")
    assert [(tick_ns - 10**18) // TICK_NS for tick_ns in rows["robocache.tick_ns"]] == list(BY_OPERATOR)
    assert all(rows["intervention"])


def test_corrections_need_a_stream_that_marks_them_and_a_takeover(recording: Path, tmp_path: Path) -> None:
    streams = {name: stream for name, stream in SPEC["streams"].items() if name != "by_operator"}
    with pytest.raises(RoboCacheError, match="corrections: no stream has role: intervention"):
        robocache_ros.export(recording, SPEC | {"streams": streams}, tmp_path / "out", corrections=True)

    other = SPEC["streams"] | {"by_operator": SPEC["streams"]["by_operator"] | {"topic": "/no_policy_ran"}}
    with pytest.raises(RoboCacheError, match="no tick is in an episode"):
        robocache_ros.export(recording, SPEC | {"streams": other}, tmp_path / "out", corrections=True)


def test_without_the_stream_there_is_no_column(recording: Path, tmp_path: Path) -> None:
    streams = {name: stream for name, stream in SPEC["streams"].items() if name != "by_operator"}

    robocache_ros.export(recording, SPEC | {"streams": streams}, tmp_path / "out")

    assert "intervention" not in rows_of(tmp_path / "out")
