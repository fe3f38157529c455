"""The plan of actions: which row a tick has, whenever chunks come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.errors import RoboCacheError
from robocache_ros.policy.plan import ActionPlan, Chunk, Outcome, PlanOptions


def chunk(tick: int, rows: int = 10, at: float = 0.0) -> Chunk:
    """A chunk whose row for tick t is t + `at`."""
    return Chunk(tick, (tick + np.arange(rows, dtype=np.float32) + np.float32(at))[:, None])


def executed(plan: ActionPlan, ticks: range) -> list[float | None]:
    commands = [plan.take(tick) for tick in ticks]
    return [None if command is None else float(command.row[0]) for command in commands]


def test_a_row_belongs_to_the_tick_of_its_observation_and_its_place() -> None:
    plan = ActionPlan(["linear"], PlanOptions(offset=2))
    plan.add(chunk(100))

    assert executed(plan, range(100, 115)) == [None] * 2 + [float(t) for t in range(100, 110)] + [None] * 3


@given(st.integers(0, 20))
def test_a_late_chunk_loses_its_past_rows_and_no_others(late: int) -> None:
    plan = ActionPlan(["linear"])
    executed(plan, range(90, 100 + late))

    outcome = plan.add(chunk(100))

    assert outcome is (Outcome.ACCEPTED if late < 10 else Outcome.LATE)
    assert plan.late_rows == min(late, 10)
    expected = [float(t) if t < 110 else None for t in range(100 + late, 125)]
    assert executed(plan, range(100 + late, 125)) == expected


@given(st.permutations([0, 3, 5]), st.sampled_from(["none", "ensemble"]))
def test_the_order_in_which_chunks_come_does_not_matter(order: list[int], blend: str) -> None:
    def run(ticks: list[int]) -> list[float | None]:
        plan = ActionPlan(["linear"], PlanOptions(blend=blend))
        for tick in ticks:
            plan.add(chunk(tick, at=0.1 * tick))
        return executed(plan, range(20))

    assert run(order) == run([0, 3, 5])


def test_the_first_of_two_chunks_of_one_observation_stays() -> None:
    plan = ActionPlan(["linear"])
    assert [plan.add(chunk(0)), plan.add(chunk(0, at=9))] == [Outcome.ACCEPTED, Outcome.DUPLICATE]
    assert executed(plan, range(3)) == [0, 1, 2]


def test_rows_at_the_start_of_a_chunk_can_be_skipped() -> None:
    plan = ActionPlan(["linear"], PlanOptions(execute_from=4))
    plan.add(chunk(0))
    assert executed(plan, range(6)) == [None] * 4 + [4, 5]


def test_a_crossfade_steps_by_no_more_than_the_chunks_and_its_share_of_their_distance() -> None:
    plan = ActionPlan(["linear"], PlanOptions(blend="crossfade", crossfade_ticks=4))
    plan.add(chunk(0, rows=30))
    before = executed(plan, range(10))
    plan.add(chunk(8, rows=20, at=5.0))

    rows = np.array([*before, *executed(plan, range(10, 20))], np.float64)

    assert np.diff(rows).max() <= 1 + 5 / 5 + 1e-6
    assert rows[14:].tolist() == [t + 5.0 for t in range(14, 20)]


def test_a_crossfade_ends_with_the_plan_that_it_leaves() -> None:
    plan = ActionPlan(["linear"], PlanOptions(blend="crossfade", crossfade_ticks=8))
    plan.add(chunk(0, rows=13))
    executed(plan, range(10))
    plan.add(chunk(8, rows=20, at=8.0))

    rows = executed(plan, range(10, 20))

    assert rows[:4] == [10 + 2.0, 11 + 4.0, 12 + 6.0, 13 + 8.0]  # quarters of the distance, as three ticks are left
    assert rows[4:] == [t + 8.0 for t in range(14, 20)]


def test_an_ensemble_is_the_weighted_mean_of_all_rows_of_a_tick() -> None:
    plan = ActionPlan(["linear"], PlanOptions(blend="ensemble", decay=0.5))
    for tick, at in ((0, 0.0), (2, 1.0), (4, 5.0)):
        plan.add(chunk(tick, at=at))

    executed(plan, range(5))
    command = plan.take(5)

    assert command
    weights = np.exp(-0.5 * np.arange(3))
    assert float(command.row[0]) == pytest.approx(5 + np.average([0, 1, 5], weights=weights), abs=1e-5)
    assert [source for source, _ in command.sources] == [0, 2, 4]
    assert [share for _, share in command.sources] == pytest.approx((weights / weights.sum()).tolist())


def test_a_gripper_is_not_blended_and_a_quaternion_turns_on_the_shorter_arc() -> None:
    plan = ActionPlan(["hold", *["slerp"] * 4], PlanOptions(blend="crossfade", crossfade_ticks=1))
    half = np.float32(np.sqrt(0.5))
    plan.add(Chunk(0, np.array([[0, 0, 0, 0, 1]] * 4, np.float32)))
    plan.add(Chunk(1, np.array([[1, 0, 0, -half, -half]] * 4, np.float32)))

    command = (plan.take(0), plan.take(1))[1]

    assert command
    assert command.row[0] == 1
    angle = np.pi / 8
    assert np.abs(command.row[1:]) == pytest.approx([0, 0, np.sin(angle), np.cos(angle)], abs=1e-6)


@pytest.mark.parametrize(
    "actions", [np.zeros((3, 2)), np.zeros((0, 1)), np.zeros(3), np.array([[np.nan]]), np.zeros((5000, 1))], ids=str
)
def test_a_chunk_that_cannot_be_executed_changes_nothing(actions: np.ndarray) -> None:
    plan = ActionPlan(["linear"])
    assert plan.add(Chunk(0, actions.astype(np.float32))) is Outcome.INVALID
    assert plan.take(0) is None


def test_the_rows_ahead_end_at_the_first_tick_without_one() -> None:
    plan = ActionPlan(["linear"])
    plan.add(chunk(0, rows=6))
    plan.take(1)
    assert [command.tick for command in plan.ahead(10)] == [2, 3, 4, 5]


def test_options_that_cannot_be_are_refused() -> None:
    for options in ({"blend": "mean"}, {"execute_from": -1}, {"crossfade_ticks": 0}, {"decay": -1.0}):
        with pytest.raises(RoboCacheError, match=next(iter(options))):
            PlanOptions(**options)  # type: ignore[arg-type]
    with pytest.raises(RoboCacheError, match="slerp takes 4 columns"):
        ActionPlan(["slerp"] * 3)
