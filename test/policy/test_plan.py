"""The plan of actions: its options, its blending, and chunks that it refuses. Which row a tick has: test_runner.py."""

from __future__ import annotations

import numpy as np
import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.policy.plan import ActionPlan, Chunk, Outcome
from robocache_ros.spec.run import RunOptions


def chunk(tick: int, rows: int = 10, at: float = 0.0) -> Chunk:
    """A chunk whose row for tick t is t + `at`."""
    return Chunk(tick, (tick + np.arange(rows, dtype=np.float32) + np.float32(at))[:, None])


def test_the_first_chunk_of_an_observation_stays_and_one_whose_rows_are_all_past_is_late():
    plan = ActionPlan(["linear"], RunOptions())
    assert [plan.add(chunk(0)), plan.add(chunk(0, at=9))] == [Outcome.ACCEPTED, Outcome.DUPLICATE]
    command = plan.take(9)
    assert command.row == 9
    assert plan.add(chunk(0 - 5)) is Outcome.LATE
    assert plan.late_rows == 10


def test_rows_at_the_start_of_a_chunk_can_be_skipped():
    plan = ActionPlan(["linear"], RunOptions(execute_from=4))
    plan.add(chunk(0))
    commands = [plan.take(tick) for tick in range(6)]
    assert [command and float(command.row[0]) for command in commands] == [None] * 4 + [4, 5]


def test_an_ensemble_is_the_weighted_mean_of_all_rows_of_a_tick():
    plan = ActionPlan(["linear"], RunOptions(blend="ensemble", decay=0.5))
    for tick, at in ((0, 0.0), (2, 1.0), (4, 5.0)):
        plan.add(chunk(tick, at=at))

    command = plan.take(5)

    weights = np.exp(-0.5 * np.arange(3))
    assert float(command.row[0]) == pytest.approx(5 + np.average([0, 1, 5], weights=weights), abs=1e-5)
    assert [source for source, _ in command.sources] == [0, 2, 4]
    assert [share for _, share in command.sources] == pytest.approx((weights / weights.sum()).tolist())


def test_a_gripper_is_not_blended_and_a_quaternion_turns_on_the_shorter_arc():
    plan = ActionPlan(["hold", *["slerp"] * 4], RunOptions(blend="crossfade", crossfade_ticks=1))
    half = np.float32(np.sqrt(0.5))
    plan.add(Chunk(0, np.array([[0, 0, 0, 0, 1]] * 4, np.float32)))
    plan.add(Chunk(1, np.array([[1, 0, 0, -half, -half]] * 4, np.float32)))

    command = (plan.take(0), plan.take(1))[1]

    assert command.row[0] == 1
    angle = np.pi / 8
    assert np.abs(command.row[1:]) == pytest.approx([0, 0, np.sin(angle), np.cos(angle)], abs=1e-6)


@pytest.mark.parametrize(
    "actions", [np.zeros((3, 2)), np.zeros((0, 1)), np.zeros(3), np.array([[np.nan]]), np.zeros((5000, 1))], ids=str
)
def test_a_chunk_that_cannot_be_executed_changes_nothing(actions):
    plan = ActionPlan(["linear"], RunOptions())
    assert plan.add(Chunk(0, actions.astype(np.float32))) is Outcome.INVALID
    assert plan.take(0) is None


def test_the_rows_ahead_end_at_the_first_tick_without_one():
    plan = ActionPlan(["linear"], RunOptions())
    plan.add(chunk(0, rows=6))
    plan.take(1)
    assert [command.tick for command in plan.ahead(10)] == [2, 3, 4, 5]


def test_options_that_cannot_be_are_refused():
    options = {"blend": "mean", "execute_from": -1, "crossfade_ticks": 0, "decay": -1.0, "coast_ticks": -1}
    for name, value in (options | {"invalid_ticks": -1}).items():
        with pytest.raises(RoboCacheError, match=name):
            RunOptions(**{name: value})
    with pytest.raises(RoboCacheError, match="slerp takes 4 columns"):
        ActionPlan(["slerp"] * 3, RunOptions())
