"""What a robot is sent at each tick: plans of a policy, an operator who takes over, and what stops them.

Nothing here knows ROS or reads a clock: ticks and times are passed in, and a row is sent by the caller.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine import tick_grid
from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import printable
from robocache_ros.policy.outputs import AHEAD, MIN_POINTS, Limits, Output, Outputs
from robocache_ros.policy.plan import MAX_HORIZON, Chunk, Command, Outcome, Prefix
from robocache_ros.recorder.run_log import DIGEST_BYTES, RunLog

Float32: TypeAlias = "NDArray[np.float32]"

LATENCIES = 1000  # inferences of which the percentiles are computed


class State(Enum):
    """The state of a run."""

    WARMUP = "warmup"  # no valid command yet: nothing is sent
    RUN = "run"
    COAST = "coast"  # a tick without a command: the last one is repeated, for `coast_ticks` at most
    STOP = "stop"  # until it is armed again


class Stop(Enum):
    """What is sent after a stop."""

    HOLD = "hold"  # the last command; nothing if none was sent
    NONE = "none"  # nothing
    ZERO_VELOCITY = "zero-velocity"


class Watchdog:
    """Decides for each tick what is sent.

    A stop is final until `arm`. Before the first valid command nothing is sent, so that a long first inference moves
    nothing.

    Attributes:
        state: of the run.
        reason: of the last stop; empty if there was none.
        last: (A,) the last row that was sent; None: nothing was.
    """

    def __init__(self, limits: Limits, names: Sequence[str]) -> None:
        self.limits = limits
        self.state = State.WARMUP
        self.reason = ""
        self._names = tuple(names)
        self.last: Float32 | None = None
        self._without = 0  # ticks without a command
        self._invalid: dict[str, int] = {}  # ticks of each invalid stream

    def command(self, row: Float32 | None) -> Float32 | None:
        """Return the row to send at a tick, given that of the plan: (A,) float32; None: send nothing of the plan."""
        if self.state is State.STOP:
            return None
        if row is None:
            return self._coast()
        if reason := self.unsafe(row, self.last):
            self.stop(reason)
            return None
        self.state, self._without, self.last = State.RUN, 0, row
        return row

    def stream(self, name: str, *, valid: bool) -> None:
        """Note whether a required stream is valid at a tick."""
        self._invalid[name] = 0 if valid else self._invalid.get(name, 0) + 1
        if self._invalid[name] > self.limits.invalid_ticks and self.state is not State.WARMUP:
            self.stop(f"{name}: invalid for {self._invalid[name]} ticks")

    def stop(self, reason: str) -> None:
        """Stop; the first reason stays."""
        if self.state is not State.STOP:
            self.state, self.reason = State.STOP, reason

    def arm(self) -> None:
        """Start again, after a stop."""
        self.state, self.reason, self.last, self._without = State.WARMUP, "", None, 0
        self._invalid.clear()

    def _coast(self) -> Float32 | None:
        if self.state is State.WARMUP:
            return None
        self._without += 1
        if self._without > self.limits.coast_ticks:
            self.stop(f"no command for {self._without} ticks")
            return None
        self.state = State.COAST
        return self.last

    def unsafe(self, row: Float32, before: Float32 | None) -> str:
        """Return why a row must not be sent after another one; empty if it may."""
        limits = self.limits
        step = np.zeros_like(row) if before is None else np.abs(row - before)
        checks = [("is not finite", ~np.isfinite(row), row)]
        if limits.lower is not None:
            checks.append(("is below its limit {0:g}", row < limits.lower, limits.lower))
        if limits.upper is not None:
            checks.append(("is above its limit {0:g}", row > limits.upper, limits.upper))
        if limits.max_step is not None:
            checks.append(("is a step of {1:g}, above its limit {0:g}", step > limits.max_step, limits.max_step))
        for text, wrong, limit in checks:
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                return f"{self._names[at]}: {row[at]:g} {text.format(limit[at], step[at])}"
        return ""


class Reply(NamedTuple):
    """The answer of a policy to a frame.

    Attributes:
        tick: of the frame.
        chunk: None if the policy failed.
        inference_ms: time that the policy took.
        error: why it failed.
    """

    tick: int
    chunk: Chunk | None
    inference_ms: float = 0.0
    error: str = ""


class Worker:
    """Runs a policy elsewhere, one frame at a time; this one never answers.

    Attributes:
        busy: whether it cannot take a frame: it is starting, planning or dead.
        dead: why it has ended; empty while it runs.
    """

    busy, dead = False, ""

    def observe(self, frame: FusedFrame, tick: int) -> None:
        """Note a frame that is valid; each of them, before `submit`."""

    def submit(self, frame: FusedFrame, tick: int, prefix: Prefix | None = None) -> None:
        """Plan from a frame, which is copied, and from what its chunk continues; returns at once."""

    def poll(self) -> list[Reply]:
        """Return the answers since the last call."""
        return []

    def restart(self) -> None:
        """Start it again, if it is dead."""

    def close(self) -> None:
        """End it."""


@dataclass(frozen=True)
class Step:
    """What is sent at a tick.

    Attributes:
        tick: index on the tick grid.
        row: (A,) float32; None: nothing is sent, or only zero velocities.
        origin: `policy`, `coast` (its last row again), `operator`, `hold` (after a stop), or empty.
        command: of the plan, with its sources, also if it is not sent.
        state: of the run.
        seam_step: largest change of a column to the row before, where another chunk begins; else 0.
        ahead: the rows of the next ticks, if they have changed: for trajectories.
        zero: whether velocities are sent as zero.
    """

    tick: int
    row: Float32 | None
    origin: str
    command: Command | None
    state: State
    seam_step: float = 0.0
    ahead: tuple[Command, ...] = ()
    zero: bool = False


class Runner:
    """Decides what is sent. Its methods may be called by several threads.

    Args:
        outputs: the columns of a row, their limits, and the options of the run.
        worker: runs the policy; None: chunks come from elsewhere.
        log: gets all that is passed in, in its order, and each step; `policy.replay` recomputes the steps from it.
        policy: of the log: what identifies the policy.

    Attributes:
        counters: chunks by outcome, rows, failures of the policy, ticks that were not stepped.
        last_error: of the policy.
    """

    def __init__(
        self,
        outputs: Outputs,
        worker: Worker | None = None,
        log: RunLog | None = None,
        policy: Mapping[str, str] | None = None,
    ) -> None:
        spec, options = outputs.spec, outputs.options
        self.outputs, self._options = outputs, options
        self.counters: Counter[str] = Counter()
        self.last_error = ""
        self.rate_hz = spec.rate_hz
        self._worker = worker
        self._plan = outputs.plan()
        self._watchdog = Watchdog(outputs.limits, outputs.names)
        self._required = [stream.name for stream in spec.streams if stream.role == "observation"]
        self._has_trajectories = any(output.is_trajectory for output in outputs.outputs)
        self._lock = threading.RLock()
        self._tick: int | None = None  # the last step
        self._frame_tick: int | None = None  # the newest frame
        self._planned: int | None = None  # the newest frame from which a plan was requested
        self._first = -(2**62)  # chunks of earlier observations are not used
        self._requested: int | None = None  # tick of the frame whose plan is awaited; other answers are not used
        self._latencies_ms: deque[float] = deque(maxlen=LATENCIES)
        self._largest_seam = 0.0
        self._changed = False  # whether the plan has changed since the last step
        self._sent: Float32 | None = None  # the last row
        self._executed: deque[tuple[int, Float32]] = deque(maxlen=MAX_HORIZON)  # the last rows, by tick
        self._points: dict[int, Float32] = {}  # of the last trajectory, by tick
        self._trajectory_tick = -(2**62)  # when it was sent
        self._takeover = False
        self._operator: dict[str, tuple[int, Float32]] = {}  # by stream: tick of arrival, values
        self._log = log
        self._note(
            "begin",
            outputs.limits.arrays(),
            spec=replace(spec, run=options).to_dict(),
            policy=dict(policy or {}),
            plans=worker is not None,
        )

    @property
    def state(self) -> State:
        """The state of the run."""
        return self._watchdog.state

    @property
    def reason(self) -> str:
        """Why the run has stopped; empty if it has not."""
        return self._watchdog.reason

    @property
    def in_takeover(self) -> bool:
        """Whether the operator commands the robot."""
        return self._takeover

    def frame(self, frame: FusedFrame, tick: int) -> None:
        """Note a frame, and request a plan from it if one is due."""
        with self._lock:
            worker = self._worker
            busy = worker is None or worker.busy
            valid = {name: int(frame.valid[name][-1]) for name in self._required if name in frame.valid}
            self._note("frame", tick=tick, busy=busy, valid=valid)
            if self._frame_tick is not None and tick <= self._frame_tick:
                if self._frame_tick - tick > self.rate_hz * tick_grid.JUMP_BACK_NS // 10**9:
                    self._jump(f"the ticks of frames went back by {self._frame_tick - tick}", back=True)
                return
            self._frame_tick = tick
            for name in self._required:
                self._watchdog.stream(name, valid=bool(valid.get(name, 1)))
            is_due = self._planned is None or tick - self._planned >= self._options.replan_every
            if worker and all(valid.values()):
                worker.observe(frame, tick)
            if worker is None or busy or not all(valid.values()) or not is_due or tick < self._first:
                return
            if self.state is State.STOP:
                return
            self._planned = self._requested = tick
            prefix = self._plan.prefix(tick, dict(self._executed))
        if self._log:
            arrays = frame.arrays() | ({"prefix": prefix.rows} if prefix else {})
            self._log.event("plan", {"tick": tick, "frozen": prefix.frozen if prefix else 0}, arrays)
        worker.submit(frame, tick, prefix)

    def add(self, chunk: Chunk) -> Outcome:
        """Put a chunk that does not come from the worker into the plan; counts what became of it."""
        with self._lock:
            self._note("chunk", {"actions": chunk.actions}, tick=chunk.tick)
            return self._add(chunk)

    def hear(self, reply: Reply) -> None:
        """Take an answer of the policy; `advance` takes those of its worker."""
        with self._lock:
            chunk = reply.chunk
            arrays = {"actions": chunk.actions} if chunk else {}
            observed = chunk.tick if chunk else None
            self._note("reply", arrays, tick=reply.tick, ms=reply.inference_ms, error=reply.error, observed=observed)
            is_awaited = self._requested == reply.tick  # else its frame is older than a jump or `arm`
            if is_awaited:
                self._requested = None
            self._latencies_ms.append(reply.inference_ms)
            if chunk is None:
                self.counters["policy_errors"] += 1
                self.last_error = printable(reply.error, 150)
            elif is_awaited and self._add(chunk) is Outcome.INVALID:
                shape = np.shape(chunk.actions)
                self.last_error = f"a chunk of shape {shape}; give finite (H, {self.outputs.width}) float32"

    def advance(self, now_ns: int) -> list[Step]:
        """Return the steps of the ticks that are due: whose time less the action latency has come."""
        with self._lock:
            due = tick_grid.last_at_or_before(now_ns + self._options.action_latency_ns, self.rate_hz)
            self._hear_worker()
            last = self._tick
            back = 0 if last is None else last - due
            jumped = back * tick_grid.period_ns(self.rate_hz) > tick_grid.JUMP_BACK_NS
            if last is not None and back >= 0 and not jumped:
                return []
            self._note("advance", now_ns=now_ns)
            if jumped:
                self._jump(f"the clock went back by {back} ticks", back=True)
                self._tick = due
                return []
            if last is not None and due - last > self._options.coast_ticks + 1:
                self.counters["ticks_not_stepped"] += due - last - 1
                self._jump(f"no step for {due - last} ticks: the clock jumped, or this process was not run")
                last = None
            return [self._step(tick) for tick in range(due if last is None else last + 1, due + 1)]

    def next_ns(self) -> int | None:
        """Return when the next step is due; None before the first one."""
        with self._lock:
            if self._tick is None:
                return None
            return tick_grid.tick_ns(self._tick + 1, self.rate_hz) - self._options.action_latency_ns

    def stop(self, reason: str) -> None:
        """Stop until `arm`."""
        with self._lock:
            if self.state is not State.STOP:
                self._note("stop", reason=reason)
                self._watchdog.stop(reason)

    def arm(self) -> None:
        """Start again after a stop: with frames from now on, and a new policy process if it had ended."""
        with self._lock:
            self._note("arm")
            if self._worker:
                self._worker.restart()
            self._forget()
            self._watchdog.arm()

    def take_over(self, active: bool) -> None:
        """Begin or end a takeover: while it lasts, the operator's commands are sent."""
        with self._lock:
            self._note("takeover", active=active)
            self._takeover = active
            self._operator.clear()

    def operator(self, stream: str, values: Float32) -> None:
        """Note the operator's command for an action stream: (D,) float32."""
        with self._lock:
            self._note("operator", {"values": values}, stream=stream)
            if self._tick is not None:
                self._operator[stream] = (self._tick, np.array(values, np.float32))

    def metrics(self) -> dict[str, float]:
        """Return what the diagnostics show of the inference and of the plan."""
        with self._lock:
            found = sorted(self._latencies_ms)
            rows = max(1, self.counters["rows"])
            percentiles = {
                f"inference_ms_p{share}": found[round(share / 100 * (len(found) - 1))] if found else float("nan")
                for share in (50, 99)
            }
            return percentiles | {
                "rows_late_share": self._plan.late_rows / rows,
                "seam_step_max": self._largest_seam,
                **{name: float(count) for name, count in sorted(self.counters.items())},
            }

    def messages(self, step: Step, now_ns: int) -> list[tuple[Output, bytes]]:
        """Return the messages of a step.

        Args:
            step: each step once, in their order.
            now_ns: the time of sending, for the stamps.
        """
        period_ns = tick_grid.period_ns(self.rate_hz)
        found: list[tuple[Output, bytes]] = []
        points = self._points_of(step) if self._has_trajectories else {}
        for output in self.outputs.outputs:
            if output.is_velocity and step.zero:
                found.append((output, output.zero(now_ns, period_ns)))
            elif output.is_trajectory:
                if points:
                    found.append((output, self._trajectory(output, points)))
            elif step.row is not None:
                found.append((output, output.message(step.row, now_ns, period_ns)))
        if self._log:
            with self._lock:  # else the reason may be that of a stop that is not in the log yet
                self._log.event("step", *described(step, self.reason, found))
        return found

    def _hear_worker(self) -> None:
        """Take the answers of the policy, and note its end."""
        if self._worker is None:
            return
        for reply in self._worker.poll():
            self.hear(reply)
        if self._worker.dead:
            self.stop(f"policy: {self._worker.dead}")

    def _add(self, chunk: Chunk) -> Outcome:
        outcome = Outcome.LATE
        if self._tick is not None and chunk.tick > self._tick + self.rate_hz:  # an observation of the future
            outcome = Outcome.INVALID
        elif chunk.tick >= self._first:
            outcome = self._plan.add(chunk)
        self.counters[f"chunks_{outcome.value}"] += 1
        if outcome is Outcome.ACCEPTED or outcome is Outcome.LATE:
            self.counters["rows"] += len(chunk.actions)
        self._changed |= outcome is Outcome.ACCEPTED
        return outcome

    def _step(self, tick: int) -> Step:
        self._tick = tick
        command = self._plan.take(tick)
        was_stopped = self.state is State.STOP
        row = self._watchdog.command(command.row if command else None)
        origin = {State.RUN: "policy", State.COAST: "coast"}.get(self.state, "")
        if self.state is State.STOP and not was_stopped and self._requested is not None and not command:
            self._watchdog.reason += f"; the policy has not answered for {tick - self._requested} ticks"
        zero = False
        ahead: tuple[Command, ...] = ()
        if self._takeover:
            row, origin = self._operator_row(tick), "operator"
        elif self.state is State.STOP:
            row, zero = self._stopped()
            origin = "hold" if row is not None else ""
        elif self._changed and self._has_trajectories and tick - self._trajectory_tick > AHEAD:
            # Not more often: a controller that waits for the stamp of a trajectory would never begin one.
            ahead = self._safe(self._plan.ahead(MAX_HORIZON), row)
            self._changed = False
        seam = 0.0
        if origin == "policy" and command and command.is_seam and self._sent is not None and row is not None:
            seam = float(np.abs(row - self._sent).max())
            self._largest_seam = max(self._largest_seam, seam)
        if row is not None:
            self._sent = row
            self._executed.append((tick, row))
        return Step(tick, row, origin, command, self.state, seam, ahead, zero)

    def _stopped(self) -> tuple[Float32 | None, bool]:
        """Return what is sent after a stop: the row, and whether velocities are zero."""
        stop = Stop(self._options.stop)
        if self._sent is None or stop is Stop.NONE:
            return None, False
        return self._sent if stop is Stop.HOLD else None, True

    def _operator_row(self, tick: int) -> Float32 | None:
        """Return the operator's commands; the last row that was sent where there are none, or they are not safe."""
        row = None if self._sent is None else self._sent.copy()
        fresh = {
            name: values for name, (at, values) in self._operator.items() if tick - at <= self._options.coast_ticks
        }
        if row is None:
            if len(fresh) < len(self.outputs.outputs):
                return None
            row = np.zeros(self.outputs.width, np.float32)
        for output in self.outputs.outputs:
            if output.name in fresh:
                row[output.columns] = fresh[output.name]
            elif output.is_velocity:
                row[output.columns] = -output.offset  # zero
        if self._watchdog.unsafe(row, None):
            self.counters["operator_refused"] += 1
            return self._sent
        self._watchdog.last = row  # the first step after the takeover is limited too
        return row

    def _safe(self, commands: list[Command], before: Float32 | None) -> tuple[Command, ...]:
        """Return the leading commands that may be sent one after another."""
        found: list[Command] = []
        for command in commands:
            if self._watchdog.unsafe(command.row, before):
                break
            found.append(command)
            before = command.row
        return tuple(found)

    def _points_of(self, step: Step) -> dict[int, Float32]:
        """Return the points of a trajectory by tick, from the third tick on; empty if none is sent.

        After a stop it holds where the trajectory before it is by then, once; an operator's has one row.
        """
        first = step.tick + AHEAD + 1
        points = {each.tick: each.row for each in step.ahead if each.tick >= first}
        is_late = step.tick - self._trajectory_tick > AHEAD
        if step.row is not None and (
            (step.origin == "operator" and is_late) or (step.origin == "hold" and self._points)
        ):
            row = self._points.get(first, step.row) if step.origin == "hold" else step.row
            points = {first: row, first + 1: row}
        if len(points) < MIN_POINTS:
            return {}
        self._trajectory_tick = step.tick
        self._points = {} if step.origin == "hold" else points
        return points

    def _trajectory(self, output: Output, points: dict[int, Float32]) -> bytes:
        first, rows = min(points), list(points.values())
        stamp_ns = tick_grid.tick_ns(first - 1, self.rate_hz)
        offsets = [tick_grid.tick_ns(first + i, self.rate_hz) - stamp_ns for i in range(len(rows))]
        return output.trajectory(np.stack(rows), stamp_ns - self._options.action_latency_ns, offsets)

    def _jump(self, reason: str, *, back: bool = False) -> None:
        if self.state is not State.WARMUP:  # nothing moves yet
            self._watchdog.stop(reason)
        self._forget()
        if back:
            self._first = -(2**62)  # the ticks of the frames until now come again
            self._trajectory_tick = -(2**62)  # else none is sent until its tick comes again

    def _forget(self) -> None:
        """Drop the plan; chunks from frames until now are not used."""
        self._plan.clear()
        self._executed.clear()
        self._requested = self._planned = None
        self._first = -(2**62) if self._frame_tick is None else self._frame_tick + 1
        self._frame_tick = None

    def _note(self, event: str, arrays: Mapping[str, NDArray[Any]] | None = None, **facts: Any) -> None:
        if self._log:
            self._log.event(event, facts, arrays or {}, facts.get("now_ns"))


def described(
    step: Step, reason: str, messages: list[tuple[Output, bytes]]
) -> tuple[dict[str, Any], dict[str, Float32]]:
    """Return what a run log has of a step: facts, and `row` if something was sent."""
    facts = {
        "tick": step.tick,
        "state": step.state.value,
        "reason": reason,
        "origin": step.origin,
        "sources": list(step.command.sources) if step.command else [],  # observed tick and weight of each chunk
        "seam_step": step.seam_step,
        "messages": {
            output.name: hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest() for output, data in messages
        },
    }
    return facts, {} if step.row is None else {"row": step.row}
