"""The runner, in ticks that tests pass in: when it plans, what it sends, and what stops it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from robocache_ros.engine import tick_grid
from robocache_ros.engine.frames import FusedFrame
from robocache_ros.policy.outputs import Outputs
from robocache_ros.policy.plan import Chunk, Outcome
from robocache_ros.policy.runner import Reply, Runner, State, Step
from robocache_ros.spec import load_spec
from robocache_ros.spec.run import RunOptions
from test.policy.models import ARM, ARRAY, GENERATIONS, FakeWorker, TrajectoryController, read

RATE_HZ = 50
START = 1000  # the first tick


class Robot:
    """A runner and its worker, tick by tick.

    Args:
        delay: ticks from a request to its answer.
    """

    def __init__(
        self, output: dict[str, Any] | None = None, stream: dict[str, Any] | None = None, delay: int = 0, **options: Any
    ) -> None:
        self.worker = FakeWorker(**{key: options.pop(key) for key in ("rows", "f") if key in options})
        spec = load_spec({"robocache": 1, "streams": ARM | {"action": ARM["action"] | (stream or {})}})
        self.outputs = Outputs(spec, RunOptions(outputs={"action": output or {}}, **{"blend": "none"} | options))
        self.runner = Runner(self.outputs, self.worker)
        self.tick = START
        self.delay = delay
        self.latency_ms = options.get("action_latency_ms", 0)
        self._due: int | None = None

    @property
    def now_ns(self) -> int:
        return tick_grid.tick_ns(self.tick, RATE_HZ)

    def frame(self, valid: bool = True) -> None:
        tensors, states = {"joints": torch.zeros(1, 2)}, {"joints": torch.tensor([int(valid)])}
        before = len(self.worker.requests)
        self.runner.frame(FusedFrame(self.now_ns, torch.tensor([self.now_ns]), tensors, states, {}), self.tick)
        if len(self.worker.requests) > before:
            self._due = self.tick + self.delay

    def step(self, frame: bool | None = True) -> Step:
        if frame is not None:
            self.frame(valid=frame)
        if self._due is not None and self.tick >= self._due and self.worker.busy:
            self.worker.answer()
        (step,) = self.runner.advance(self.now_ns)
        self.tick += 1
        return step

    def steps(self, count: int, **given: Any) -> list[Step]:
        return [self.step(**given) for _ in range(count)]

    def jump(self, ticks: int) -> list[Step]:
        """The clock jumps before the next tick, to which the runner then advances."""
        self.tick += ticks
        found = self.runner.advance(self.now_ns)
        self.tick += 1
        return found

    def arm(self) -> None:
        self.runner.arm()
        self.worker.requests.clear()

    def sent(self, step: Step, now_ns: int = 0) -> list[bytes]:
        """The messages of a step."""
        return [data for _, data in self.runner.messages(step, now_ns)]


def commands(messages: list[bytes]) -> list[list[float]]:
    """What forward_command_controller does with messages."""
    return [read(data, ARRAY).data.tolist() for data in messages]


def values(steps: list[Step]) -> list[float | None]:
    return [None if step.row is None else float(step.row[0]) for step in steps]


def test_nothing_moves_before_the_first_answer_and_then_the_row_of_the_tick_is_sent():
    robot = Robot(delay=35, rows=60)  # 700 ms

    found = robot.steps(50)

    assert values(found) == [None] * 35 + [float(tick) for tick in range(START + 35, START + 50)]
    assert [step.state for step in found[34:36]] == [State.WARMUP, State.RUN]
    assert not any(robot.sent(step) for step in found[:35])


def test_it_plans_again_after_replan_every_ticks_or_when_the_policy_is_ready():
    for delay, chunks in ((0, 4), (12, 2)):
        robot = Robot(replan_every=8, delay=delay)
        robot.steps(30)
        assert robot.runner.counters["chunks_accepted"] == chunks


def test_a_command_is_sent_earlier_by_the_action_latency():
    robot = Robot(action_latency_ms=45)
    assert robot.step().tick == START + 2
    assert robot.runner.next_ns() == tick_grid.tick_ns(START + 3, RATE_HZ) - 45_000_000


def test_the_first_row_belongs_to_the_offset_of_the_training_labels():
    robot = Robot(offset=3)
    assert values(robot.steps(5)) == [None] * 3 + [START, START + 1]


def test_late_rows_are_lost_and_counted_and_no_others():
    robot = Robot(delay=10, replan_every=100)
    assert robot.runner.metrics()["rows_late_share"] == 0  # before the first chunk
    robot.steps(30)
    metrics = robot.runner.metrics()
    assert metrics["rows_late_share"] == pytest.approx(10 / 40)
    assert (metrics["inference_ms_p50"], metrics["inference_ms_p99"]) == (12.5, 12.5)

    robot = Robot(delay=1, rows=1, replan_every=100)
    robot.steps(5)
    assert robot.runner.metrics()["rows_late_share"] == 1


def test_without_rows_it_coasts_and_then_stops_and_holds_the_last_row():
    robot = Robot(rows=5, replan_every=1000, coast_ticks=3)

    found = robot.steps(10)

    assert [step.state for step in found[4:]] == [State.RUN] + [State.COAST] * 3 + [State.STOP] * 2
    assert [step.origin for step in found[4:]] == ["policy"] + ["coast"] * 3 + ["hold"] * 2
    assert values(found[4:]) == [START + 4] * 6
    assert "no command for 4 ticks" in robot.runner.reason


def test_a_policy_that_hangs_stops_the_run_with_its_delay_as_the_reason():
    robot = Robot(rows=10, replan_every=5, coast_ticks=3)
    robot.step()
    robot.delay = 10_000
    robot.steps(20)
    assert robot.runner.state is State.STOP
    assert "the policy has not answered for" in robot.runner.reason


def test_a_dead_policy_stops_the_run_and_arming_starts_another():
    robot = Robot()
    robot.steps(5)
    robot.worker.dead = "its process ended with exit code -9"

    step = robot.step()

    assert (step.state, robot.runner.reason) == (State.STOP, "policy: its process ended with exit code -9")
    robot.arm()
    assert (robot.worker.restarts, robot.step().state) == (1, State.RUN)


@pytest.mark.parametrize(("stop", "row", "zero"), [("hold", True, True), ("none", False, False)])
def test_what_is_sent_after_a_stop_is_what_the_options_say(stop, row, zero):
    robot = Robot(stop=stop)
    robot.steps(3)
    robot.runner.stop("a call of stop")
    step = robot.step()
    assert (step.row is not None, step.zero) == (row, zero)


def test_a_velocity_is_zero_after_a_stop_also_with_hold():
    robot = Robot({"accept_no_timeout": True}, {"unit": "m/s"})
    robot.steps(3)
    robot.runner.stop("a call of stop")
    assert commands(robot.sent(robot.step())) == [[0, 0]]


def test_a_stop_before_the_first_row_sends_nothing():
    robot = Robot(delay=1000)
    robot.steps(3)
    robot.runner.stop("a call of stop")
    assert values(robot.steps(3)) == [None] * 3


def test_an_invalid_observation_stops_the_run_after_some_ticks_and_no_plan_is_made_of_it():
    robot = Robot(invalid_ticks=4, replan_every=1)
    robot.steps(3)
    accepted = robot.runner.counters["chunks_accepted"]

    found = robot.steps(6, frame=False)

    assert [step.state for step in found] == [State.RUN] * 4 + [State.STOP] * 2
    assert robot.runner.reason == "joints: invalid for 5 ticks"
    assert robot.runner.counters["chunks_accepted"] == accepted


@pytest.mark.parametrize(
    ("output", "f", "words"),
    [
        ({"upper": [START + 4, 1e6]}, float, "1005 is above its limit 1004"),
        ({"lower": START - 4}, lambda tick: 2.0 * START - tick, "995 is below its limit 996"),
        ({"max_step": 2}, lambda tick: tick + 5.0 * (tick > START + 4), "1010 is a step of 6, above its limit 2"),
    ],
)
def test_a_row_beyond_a_limit_is_not_sent(output, f, words):
    robot = Robot(output, f=f)
    assert values(robot.steps(8)) == [f(START + min(i, 4)) for i in range(8)]
    assert robot.runner.reason == f"action.0: {words}"


@pytest.mark.parametrize("ticks", [-100, 100])
def test_a_jump_of_the_clock_stops_the_run_and_drops_its_rows(ticks):
    robot = Robot()
    robot.steps(5)

    robot.jump(ticks)

    assert robot.runner.state is State.STOP
    assert "clock" in robot.runner.reason
    robot.arm()
    assert values(robot.steps(2)) == [robot.tick - 2, robot.tick - 1]


def test_a_jump_of_the_clock_before_the_first_row_stops_nothing():
    robot = Robot(delay=10)
    robot.steps(5)
    assert [step.state for step in robot.jump(100)] == [State.WARMUP]


def test_a_clock_that_goes_back_before_the_first_row_plans_again_and_does_not_use_the_earlier_plan():
    robot = Robot(delay=10)
    robot.steps(5)
    assert robot.worker.requests == [START]
    robot.jump(-200)
    robot.worker.answer()  # with rows for ticks that are in the future now

    assert values(robot.steps(20)) == [None] * 10 + [float(START - 194 + at) for at in range(10, 20)]


def test_ticks_that_were_missed_are_stepped_in_order():
    robot = Robot()
    robot.steps(2)
    assert [step.tick for step in robot.jump(3)] == [START + i for i in range(2, 6)]


def test_chunks_of_frames_before_arming_are_not_used():
    robot = Robot()
    robot.steps(2)
    robot.runner.stop("a call of stop")
    robot.runner.arm()
    assert robot.runner.add(Chunk(START + 1, np.zeros((30, 2), np.float32))) is Outcome.LATE
    assert robot.runner.add(Chunk(START + 1000, np.zeros((30, 2), np.float32))) is Outcome.INVALID


def test_an_operator_wins_while_a_takeover_lasts_and_the_policy_goes_on_planning():
    robot = Robot(replan_every=1)
    robot.steps(3)
    robot.runner.take_over(True)
    held = robot.step()
    robot.runner.operator("action", np.array([7, 8], np.float32))
    operated = robot.steps(2)
    robot.runner.operator("action", np.array([np.nan, 8], np.float32))
    refused = robot.step()
    robot.runner.take_over(False)
    after = robot.step()

    assert values([held, *operated, refused]) == [START + 2, 7, 7, 7]
    assert {step.origin for step in (held, *operated, refused)} == {"operator"}
    assert (after.origin, values([after])) == ("policy", [START + 7])
    assert robot.runner.counters["operator_refused"] == 1


def test_an_operator_may_move_a_robot_that_has_stopped():
    robot = Robot()
    robot.steps(3)
    robot.runner.stop("a call of stop")
    robot.runner.take_over(True)
    robot.runner.operator("action", np.array([7, 8], np.float32))
    operated = robot.step()
    robot.runner.take_over(False)
    assert (values([operated, robot.step()]), robot.runner.state) == ([7, 7], State.STOP)


def test_an_error_of_the_policy_is_counted_and_stops_nothing_at_once(monkeypatch):
    robot = Robot(replan_every=1)
    robot.steps(2)
    bad = [(None, "no image has arrived"), (Chunk(START + 3, np.zeros((3, 5), np.float32)), "")]

    def answer() -> None:
        chunk, error = bad.pop(0)
        robot.worker.replies.append(Reply(robot.worker.requests.pop(), chunk, error=error))

    monkeypatch.setattr(robot.worker, "answer", answer)

    assert [step.state for step in robot.steps(2)] == [State.RUN] * 2
    assert robot.runner.counters["policy_errors"] == 1
    assert "a chunk of shape (3, 5)" in robot.runner.last_error


# Chunks over a network: which row has which tick does not depend on when it comes.


Arrivals = list[tuple[int, Chunk]]  # with the tick of each


def traffic(seed: int) -> tuple[Arrivals, int]:
    """Chunks with the tick at which they arrive: latency 0 to 500 ms, jitter, reordered, some twice with other rows."""
    generator = np.random.default_rng(seed)
    ticks = 200
    sent = []
    for tick in range(START, START + ticks, int(generator.integers(2, 9))):
        phase = (tick + np.arange(40))[:, None] * np.array([0.05, 0.11]) + generator.normal(0, 0.05)
        for number in range(1 + int(generator.random() < 0.2)):
            chunk = Chunk(tick, np.sin(phase + number).astype(np.float32))
            sent.append((tick + int(generator.integers(0, 26)), chunk))
    return sorted(sent, key=lambda each: each[0]), ticks


def oracle_row(sent: Arrivals, tick: int, now: int, blend: str) -> np.ndarray | None:
    """The row of a tick, computed from all chunks that arrived by another tick; None: no chunk has one."""
    known: dict[int, tuple[int, int, Chunk]] = {}  # by tick: first row that is not past, length of the crossfade
    for arrival, chunk in sent:
        if arrival <= now and chunk.tick not in known and chunk.tick + 40 > arrival:
            begins, fade = max(chunk.tick, arrival), 0
            while fade < 8 and any(other <= begins + fade < other + 40 for other in known):
                fade += 1
            known[chunk.tick] = (begins, fade, chunk)
    row = None
    rows = [each for observed, each in sorted(known.items()) if observed <= tick < observed + 40]
    for index, (begins, fade, chunk) in enumerate(rows):
        new = chunk.actions[tick - chunk.tick]
        if blend == "crossfade":
            weight = np.float32(min(1.0, (tick - begins + 1) / (fade + 1)))
        elif blend == "ensemble":
            weights = np.exp(-0.01 * np.arange(index + 1))
            weight = np.float32(weights[-1] / sum(weights))
        else:
            weight = np.float32(1)
        row = new if row is None or blend == "none" else row + weight * (new - row)
    return row


def drive(robot: Robot, chunks: Arrivals, first: int, count: int) -> Iterator[tuple[Step, int, list[bytes]]]:
    """Run ticks in which chunks arrive; yields each step, its time, and its messages."""
    for robot.tick in range(first, first + count):
        for arrival, chunk in chunks:
            if arrival == robot.tick:
                robot.runner.add(chunk)
        now_ns = robot.now_ns - round(robot.latency_ms * 1e6)
        for step in robot.runner.advance(now_ns):
            yield step, now_ns, robot.sent(step, now_ns)


def without_policy(output: dict[str, Any] | None = None, **options: Any) -> Robot:
    """A robot whose chunks come from a test."""
    robot = Robot(output, coast_ticks=50, **options)
    robot.runner = Runner(robot.outputs)
    return robot


TRAJECTORY = {"type": "trajectory_msgs/msg/JointTrajectory", "names": ["a", "b"]}


@pytest.mark.parametrize("blend", ["none", "crossfade", "ensemble"])
def test_the_command_of_each_tick_is_that_of_the_oracle_however_chunks_come(blend):
    for seed in range(5):
        sent, ticks = traffic(seed)
        for step, _, messages in drive(without_policy(blend=blend), sent, START, ticks):
            row = oracle_row(sent, step.tick, step.tick, blend)
            assert (row is None) == (step.command is None)
            if row is not None:
                assert step.row.tobytes() == row.tobytes()
                assert commands(messages) == [row.astype(np.float64).tolist()]


@pytest.mark.parametrize(("blend", "share"), [("none", 1.0), ("crossfade", 1 / 9), ("ensemble", 1 / 1.99)])
@pytest.mark.parametrize("late", [0, 1, 12])
def test_the_step_at_a_seam_is_that_of_the_plan_and_the_share_of_its_distance_to_the_new_chunk(late, blend, share):
    at = 8 + late  # the tick of the seam

    def seam_step(one: np.ndarray, other: np.ndarray) -> float:
        robot = without_policy(blend=blend)
        robot.runner.add(Chunk(START, one))
        robot.steps(at, frame=None)
        robot.runner.add(Chunk(START + 8, other))
        step = robot.step(frame=None)
        assert step.command.is_seam
        return step.seam_step

    for seed in range(4):
        generator = np.random.default_rng(seed)
        one, other = (generator.normal(0, 0.1, (40, 2)).cumsum(0).astype(np.float32) for _ in range(2))
        old_step = np.abs(one[at] - one[at - 1])
        apart = np.abs(other[at - 8] - one[at])
        assert 0 < seam_step(one, other) <= (old_step + share * apart).max() + 1e-6
        if late:  # chunks that agree at the tick before step by no more than the larger of their own steps
            other += one[at - 1] - other[at - 9]
            larger = np.maximum(old_step, np.abs(other[at - 8] - other[at - 9])).max()
            assert seam_step(one, other) <= larger + 1e-6


def executed(
    robot: Robot, controller: TrajectoryController, chunks: Arrivals, first: int, count: int, blend: str = ""
) -> tuple[list[int], int]:
    """Compare what a controller executes with the oracle of a way to blend, to the bit.

    Returns: the ticks at which trajectories were sent, whose first row is that of the third tick, and the number of
        ticks that were compared.
    """
    sends: list[int] = []
    compared = 0
    for step, now_ns, messages in drive(robot, chunks, first, count):
        controller.receive(messages, now_ns)
        sends += [step.tick for _ in messages]
        begun = [each for each in sends if each + 3 <= step.tick]
        # `at once` has dropped the one before, and is on a ramp.
        is_ramp = controller.generation == "at once" and sends and step.tick < sends[-1] + 3
        row = oracle_row(chunks, step.tick, begun[-1], blend) if blend and begun and not is_ramp else None
        if row is not None:
            assert controller.command(now_ns).tobytes() == row.astype(np.float64).tobytes()
            compared += 1
    return sends, compared


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("blend", ["none", "crossfade", "ensemble"])
@pytest.mark.parametrize("latency_ms", [0, 60])
def test_a_trajectory_controller_executes_the_rows_of_the_oracle_to_the_bit(generation, blend, latency_ms):
    sent, ticks = traffic(1)
    robot = without_policy(TRAJECTORY, blend=blend, action_latency_ms=latency_ms)
    _, compared = executed(robot, TrajectoryController(generation, np.zeros(2)), sent, START, ticks, blend)
    assert compared > (30 if generation == "at once" else 150)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("blend", ["none", "crossfade", "ensemble"])
@pytest.mark.parametrize("back", [30, 150])
def test_a_trajectory_controller_executes_the_rows_of_chunks_since_the_clock_went_back(back, blend, generation):
    (sent, ticks), (again, _) = traffic(7), traffic(8)
    again = [(arrival - back, Chunk(chunk.tick - back, chunk.actions)) for arrival, chunk in again]
    robot = without_policy(TRAJECTORY, blend=blend)
    controller = TrajectoryController(generation, np.zeros(2))

    assert executed(robot, controller, sent, START, 60)[0]
    going = controller.command(robot.now_ns)
    # A trajectory that holds is sent, in place of those of the time before.
    assert executed(robot, controller, [], START + 60 - back, 8)[0] == [START + 61 - back]
    held = controller.command(robot.now_ns)
    assert np.abs(held - going).max() < 0.5
    robot.runner.arm()
    first = START + 68 - back
    since = [each for each in again if each[0] >= first]
    _, compared = executed(robot, controller, since, first, ticks - 73, blend)
    assert compared > (20 if generation == "at once" else 100)


def test_trajectories_are_sent_at_once_after_a_clock_that_went_back_while_the_run_was_stopped():
    robot = Robot(TRAJECTORY)
    sends = []
    for index in range(40):
        if index == 10:
            robot.runner.stop("a call of stop")
        if index == 20:
            robot.tick -= 150
        if index == 25:
            robot.runner.arm()
        robot.frame()
        if robot.worker.busy:
            robot.worker.answer()
        for step in robot.runner.advance(robot.now_ns):
            sends += [index for _ in robot.sent(step, robot.now_ns)]
        robot.tick += 1
    assert next(index for index in sends if index >= 25) <= 27


@pytest.mark.parametrize("latency_ms", [0, 60])
def test_the_ramp_of_a_trajectory_controller_that_drops_the_one_before_is_near_the_row_of_each_tick(latency_ms):
    robot = Robot(TRAJECTORY, delay=7, f=lambda tick: float(np.sin(0.1 * tick)), action_latency_ms=latency_ms)
    controller = TrajectoryController("at once", np.full(2, np.sin(0.1 * (START + 7))))
    sent = 0
    for _ in range(100):
        step = robot.step()
        now_ns = tick_grid.tick_ns(step.tick, RATE_HZ) - round(latency_ms * 1e6)
        messages = robot.sent(step, now_ns)
        controller.receive(messages, now_ns)
        sent = sent or (step.tick if messages else 0)
        if sent and step.tick >= sent + 3 and step.row is not None:
            # A ramp to the third row is a chord: within 3 ticks it differs by 0.1 ** 2 * 9 / 8 at most.
            np.testing.assert_allclose(controller.command(now_ns), step.row, rtol=0, atol=0.012)
    assert sent


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_trajectory_controller_holds_after_a_stop_where_it_was_going(generation):
    robot = Robot(TRAJECTORY)
    controller = TrajectoryController(generation, np.full(2, float(START)))
    trace = []
    for index in range(40):
        if index == 12:
            robot.runner.stop("a call of stop")
        step = robot.step()
        now_ns = tick_grid.tick_ns(step.tick, RATE_HZ)
        controller.receive(robot.sent(step, now_ns), now_ns)
        trace.append(float(controller.command(now_ns)[0]))
    assert (np.diff(trace) > -1e-6).all()  # it does not go back
    assert trace[-1] == START + 15


def test_trajectories_are_sent_no_more_often_than_a_controller_that_waits_for_their_stamps_begins_them():
    robot = Robot(TRAJECTORY, replan_every=1)
    sent = [robot.tick for _ in range(20) if robot.sent(robot.step())]
    assert np.diff(sent).min() >= 3


def test_a_prefix_has_the_rows_that_were_sent_and_are_planned_from_the_first_tick_of_the_chunk():
    robot = Robot(prefix=6, replan_every=10, delay=4, rows=30, offset=2)
    robot.steps(11)  # the second frame is that of tick START + 10

    prefix = robot.worker.prefix

    # Row i of a chunk of tick k is k + i, at tick k + i + 2; the first chunk has rows until START + 31.
    assert prefix.rows[:, 0].tolist() == [START + 10 + i for i in range(20)]
    assert (prefix.rows.dtype, prefix.frozen) == (np.float32, 6)


def test_a_prefix_begins_with_the_rows_that_were_sent_while_the_observation_came():
    robot = Robot(prefix=6, replan_every=10, rows=30)
    robot.steps(12, frame=None)

    robot.tick = START + 5  # its frame comes 7 ticks after it
    robot.frame()
    robot.worker.answer()
    robot.tick = START + 12
    robot.steps(10, frame=None)
    robot.tick = START + 15
    robot.frame()

    assert robot.worker.prefix.rows[:, 0].tolist() == [*range(START + 15, START + 35)]


def test_there_is_no_prefix_without_the_option_before_the_first_command_or_after_a_stop():
    without = Robot(replan_every=5)
    without.steps(8)
    assert without.worker.prefix is None

    robot = Robot(prefix=3, replan_every=5, delay=100)
    robot.steps(2)
    assert robot.worker.prefix is None
    robot.delay = 0
    robot.worker.answer()
    robot.steps(20)
    assert robot.worker.prefix is not None
    robot.runner.stop("a test")
    robot.runner.arm()
    robot.step()
    assert robot.worker.prefix is None


def test_rows_that_were_sent_before_the_clock_went_back_are_in_no_prefix():
    robot = Robot(prefix=3, replan_every=5)
    robot.steps(300)
    assert robot.worker.prefix is not None
    robot.jump(-200)
    robot.arm()
    robot.step()
    assert robot.worker.prefix is None


def test_no_more_rows_are_frozen_than_there_are():
    robot = Robot(prefix=9, replan_every=10, rows=14)
    robot.steps(11)
    assert (len(robot.worker.prefix.rows), robot.worker.prefix.frozen) == (4, 4)


def test_a_policy_of_several_observations_sees_each_valid_frame():
    robot = Robot(replan_every=10)
    for valid in (True, True, True, False, True, True):
        robot.step(valid)
    assert robot.worker.observed == [START, START + 1, START + 2, START + 4, START + 5]
