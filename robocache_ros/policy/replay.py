"""The replay of a run to the bit: ticks are computed again, the policy plans again, and commands are derived again."""

from __future__ import annotations

import json
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.engine import FusionEngine, tick_grid
from robocache_ros.engine.frames import FusedFrame, frame_of_arrays
from robocache_ros.engine.offline import reach_ns
from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.policy.outputs import Outputs
from robocache_ros.policy.plan import Chunk, Prefix
from robocache_ros.policy.policies import RunnablePolicy, observed_ticks, open_policy
from robocache_ros.policy.runner import Reply, Runner, Step, Worker, described
from robocache_ros.policy.worker import answer, environment
from robocache_ros.recorder.mcap import McapWriter
from robocache_ros.recorder.run_log import (
    CALLS,
    EVENTS,
    RUN,
    RUN_END,
    Call,
    Difference,
    EngineReplay,
    Event,
    RunReader,
    Tick,
    media_digest,
    pack_event,
    shown,
    tick_difference,
    unchecked_call,
)
from robocache_ros.spec import TF_STATIC, TF_TYPE, FusionSpec, load_spec
from robocache_ros.spec.layout import Layout
from robocache_ros.spec.run import RunOptions
from robocache_ros.storage.errors import file_errors
from robocache_ros.units import NS_PER_S

PARTS = ("ticks", "observations", "plans", "commands")  # what is compared
MAX_THREADS = 1024
_DAMAGE = (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError, RecursionError)


@dataclass
class Verification:
    """What a replay found.

    Attributes:
        messages: number of replayed messages.
        ticks: number of compared ticks of the engine.
        observations: of compared frames from which a plan was made; plans: of compared chunks of the policy; commands:
            of compared ticks of the runner.
        different: how many of them differ, by those names.
        first: where the replay first differs; None: nowhere.
        first_tick, last_tick: index of the first and the last compared tick, of the engine or else of the runner.
        notes: on damage and losses of the file, and on what was not compared, one line each.
    """

    messages: int = 0
    ticks: int = 0
    observations: int = 0
    plans: int = 0
    commands: int = 0
    different: Counter[str] = field(default_factory=Counter)
    first: Difference | None = None
    first_tick: int | None = None
    last_tick: int | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, part: str, tick: int, difference: Difference | None) -> None:
        """Count what was compared at a tick."""
        setattr(self, part, getattr(self, part) + 1)
        if difference:
            self.different[part] += 1
            self.first = self.first or difference
        if part == "ticks" or (part == "commands" and not self.ticks):
            self.first_tick = tick if self.first_tick is None else self.first_tick
            self.last_tick = tick

    def __str__(self) -> str:
        parts = []
        for part in PARTS:
            if count := getattr(self, part):
                words, different = number_of(count, part[:-1]), self.different[part]
                parts.append(f"{different:,} of {words} differ" if different else f"{words} equal")
        if not parts:
            return "nothing to compare"
        return f"ticks {self.first_tick} to {self.last_tick}: {', '.join(parts)}"


class Compared(NamedTuple):
    """What was compared of an event: a part of a `Verification` (empty: nothing), and the event as computed."""

    part: str
    tick: int
    difference: Difference | None
    computed: Event | None = None


@dataclass(eq=False)
class PolicyReplay:
    """Passes the events of a run to a runner as they came, and compares what it does."""

    run: RunReader  # notes what is damaged
    engine: EngineReplay  # has the ticks that the observations are compared with
    policy: str | None = None  # as on the command line, to plan again; None: that of the run, if it can be opened
    plans: bool = True  # whether the policy plans again

    def __post_init__(self) -> None:
        self._runner: Runner | None = None
        self._layout: Layout | None = None
        self._worker: _Worker | None = None
        self._identity: Mapping[str, Any] = {}
        self._policy: RunnablePolicy | None = None
        self._opened = False  # whether it was tried for the process that has planned
        self._answer: Reply | None = None
        self._pending: deque[Step] = deque()  # computed, and not yet compared
        self._now_ns = 0
        self._threads = torch.get_num_threads()
        self._events: dict[str, Callable[[Runner, Event], Compared | None]] = {
            "frame": self._frame,
            "plan": self._plan,
            "reply": self._reply,
            "chunk": self._chunk,
            "advance": self._advance,
            "step": self._step,
            "stop": lambda runner, event: runner.stop(str(event.facts["reason"])),
            "arm": lambda runner, event: runner.arm(),
            "takeover": lambda runner, event: runner.take_over(bool(event.facts["active"])),
            "operator": lambda runner, event: runner.operator(str(event.facts["stream"]), event.arrays["values"]),
        }

    def take(self, event: Event) -> Compared | None:
        """Replay an event, in the order of the run; returns what was compared."""
        try:
            if event.name == "begin":
                self._begin(event)
            elif event.name == "ready":
                self._ready(event)
            elif self._runner is not None:
                return self._events[event.name](self._runner, event)
        except _PolicyError as error:
            raise RoboCacheError(str(error)) from None
        except _DAMAGE as error:
            self.run.note(f"an event of the policy is damaged and was left out ({printable(error, 60)})")
        return None

    @property
    def begun(self) -> bool:
        """Whether the run has a runner."""
        return self._runner is not None

    def close(self) -> None:
        """Release the policy."""
        torch.set_num_threads(self._threads)
        if self._policy:
            self._policy.close()
            self._policy = None

    def _begin(self, event: Event) -> None:
        spec = load_spec(event.facts["spec"])
        self._layout = Layout(spec)
        self._identity = dict(event.facts["policy"])
        self._worker = _Worker() if event.facts["plans"] else None
        outputs = Outputs(spec, spec.run or RunOptions())
        if any(values.shape != (outputs.width,) for values in event.arrays.values()):
            raise ValueError("limits of another width")
        lower, upper, max_step = (event.arrays.get(name) for name in ("lower", "upper", "max_step"))
        # Those of the run, wherever they came from.
        outputs.limits = replace(outputs.limits, lower=lower, upper=upper, max_step=max_step)
        self._runner = Runner(outputs, self._worker)
        self._pending.clear()
        self._opened = False

    def _ready(self, event: Event) -> None:
        """Note a new process of the policy."""
        self._opened, self._answer = False, None
        here, there = environment(), event.facts
        torch.set_num_threads(min(MAX_THREADS, max(1, int(there["threads"]))))
        changed = [
            f"{name} {printable(there[name], 20)}, here {here[name]}"
            for name in ("torch", "cpu")
            if there[name] != here[name]
        ]
        if self.plans and changed:
            self.run.note(f"the plans were made with {'; '.join(changed)}: their last bits may differ")

    def _frame(self, runner: Runner, event: Event) -> None:
        tick, valid = int(event.facts["tick"]), event.facts["valid"]
        if self._worker:
            self._worker.busy = bool(event.facts["busy"])
        now_ns = tick_grid.tick_ns(tick, runner.rate_hz)
        tensors = {str(name): torch.tensor([int(value)]) for name, value in valid.items()}
        runner.frame(FusedFrame(now_ns, torch.tensor([now_ns]), {}, tensors, {}), tick)

    def _plan(self, runner: Runner, event: Event) -> Compared | None:
        tick = int(event.facts["tick"])
        frame = frame_of_arrays(event.arrays, self._layout)
        if self.plans and not self._opened:
            self._opened = True
            self._policy = self._open(runner.outputs.spec)
        prefix = None
        if (rows := event.arrays.get("prefix")) is not None:
            prefix = Prefix(rows, int(event.facts["frozen"]))
        self._answer = answer(self._policy, frame, tick, prefix) if self._policy else None
        requested = self._worker is not None and tick in self._worker.requested
        if not requested and "cut" not in self.run.metadata:
            return Compared("observations", tick, self._missing(tick, "the plan", "a plan", "no plan"))
        observed = self.engine.ticks.get(tick)
        if observed is None:
            return None
        return Compared("observations", tick, self._observation_difference(frame, tick))

    def _open(self, spec: FusionSpec) -> RunnablePolicy | None:
        if self._policy:
            self._policy.close()
        if self.policy is not None:
            try:
                if (count := observed_ticks(self.policy)) > 1:
                    raise RoboCacheError(
                        f"policy: it observes {count} ticks, and a run has the newest of them; leave --policy out"
                    )
                return open_policy(self.policy, spec)
            except Exception as error:  # of the user's module too
                text = str(error) if isinstance(error, RoboCacheError) else f"policy: {error!r}; correct it"
                raise _PolicyError(printable(text, 199)) from None
        given = self._identity
        why = ""
        if given.get("kind") != "checkpoint":
            why = "it is not a checkpoint"
        elif given.get("device") != "cpu":
            why = f"it planned on {printable(given.get('device'), 20)}"
        else:
            from robocache_ros.formats.dataset_folder import sha256

            file = Path(str(given.get("path")))
            if not file.is_file():
                why = f"{printable(file, 60)} does not exist"
            elif sha256(file) != given.get("sha256"):
                why = f"{printable(file, 60)} has changed"
        if not why:
            return open_policy(str(given["path"]), spec)
        self.run.note(f"the policy has not planned again: {why}; give --policy to compare its plans")
        return None

    def _reply(self, runner: Runner, event: Event) -> Compared | None:
        facts, actions = event.facts, event.arrays.get("actions")
        chunk = None if actions is None else Chunk(int(facts["observed"]), actions)
        reply = Reply(int(facts["tick"]), chunk, float(facts["ms"]), str(facts["error"]))
        runner.hear(reply)
        again, self._answer = self._answer, None
        if again is None or again.tick != reply.tick:
            return None
        return Compared("plans", reply.tick, self._chunk_difference(runner, reply, again))

    def _chunk(self, runner: Runner, event: Event) -> None:
        runner.add(Chunk(int(event.facts["tick"]), event.arrays["actions"]))

    def _advance(self, runner: Runner, event: Event) -> Compared | None:
        left = self._pending[0] if self._pending else None
        self._now_ns = int(event.facts["now_ns"])
        self._pending = deque(runner.advance(self._now_ns))
        if left is None:
            return None
        return Compared("commands", left.tick, self._missing(left.tick, "the command", "nothing", "a command"))

    def _step(self, runner: Runner, event: Event) -> Compared | None:
        if not self._pending:
            if event.facts.get("unchecked"):
                return None  # a part of a run may begin between an advance and its steps
            tick = int(event.facts["tick"])
            return Compared("commands", tick, self._missing(tick, "the command", "a command", "nothing"))
        step = self._pending.popleft()
        computed = Event("step", *described(step, runner.reason, runner.messages(step, self._now_ns)))
        if event.facts.get("unchecked"):
            return Compared("", step.tick, None, computed)
        return Compared("commands", step.tick, self._step_difference(runner, event, computed), computed)

    def _step_difference(self, runner: Runner, recorded: Event, computed: Event) -> Difference | None:
        tick = int(computed.facts["tick"])
        where = tick, tick_grid.tick_ns(tick, runner.rate_hz)
        if recorded.facts["tick"] != tick:
            return Difference(*where, "the command", "tick", str(recorded.facts["tick"]), str(tick))
        rows = [event.arrays.get("row", np.empty(0, np.float32)) for event in (recorded, computed)]
        if rows[0].shape != rows[1].shape or rows[0].dtype != np.float32:
            words = [f"{len(row)} values" if row.ndim == 1 and len(row) else "nothing" for row in rows]
            return Difference(*where, "the command", "", *words)
        wrong = np.flatnonzero(rows[0].view("<u4") != rows[1].view("<u4"))
        if len(wrong):
            at = int(wrong[0])
            output = next(each for each in runner.outputs.outputs if each.columns.start <= at < each.columns.stop)
            return Difference(*where, output.name, runner.outputs.names[at], *shown(rows[0][at], rows[1][at]))
        for name in [each for each in computed.facts if each != "reason"]:  # its words change with the version
            words = [json.dumps(event.facts.get(name)) for event in (recorded, computed)]
            if words[0] != words[1]:
                return Difference(*where, "the command", name, *(printable(text, 60) for text in words))
        return None

    def _chunk_difference(self, runner: Runner, recorded: Reply, again: Reply) -> Difference | None:
        where = recorded.tick, tick_grid.tick_ns(recorded.tick, runner.rate_hz), "the plan"
        if recorded.chunk is None or again.chunk is None:
            texts = [reply.error or "a plan" for reply in (recorded, again)]
            return None if texts[0] == texts[1] else Difference(*where, "", *(printable(text, 60) for text in texts))
        one, other = recorded.chunk, again.chunk
        if one.tick != other.tick:
            return Difference(*where, "observed tick", str(one.tick), str(other.tick))
        if one.actions.shape != other.actions.shape or one.actions.dtype != other.actions.dtype:
            return Difference(*where, "shape", *(f"{each.actions.shape} {each.actions.dtype}" for each in (one, other)))
        wrong = np.argwhere(_bits(one.actions) != _bits(other.actions))
        if not len(wrong):
            return None
        at = tuple(wrong[0].tolist())
        names = runner.outputs.names
        column = names[at[-1]] if len(at) == 2 and at[-1] < len(names) else str(at)
        return Difference(*where, f"row {at[0]} of {column}", *shown(one.actions[at], other.actions[at]))

    def _observation_difference(self, frame: FusedFrame, tick: int) -> Difference | None:
        """Compare an observation with the computed ticks: the values of its vectors, `valid`, its images and grids."""
        layout = self.run.layout
        streams = [stream.name for stream in layout.spec.streams]
        for back, row_at in enumerate(range(len(frame.ticks_ns) - 1, -1, -1)):
            there = self.engine.ticks.get(tick - back)
            if there is None:
                continue
            parts = [frame.tensors[stream.name][row_at].flatten() for stream in layout.spec.vectors]
            parts.append(torch.stack([frame.valid[name][row_at] for name in streams]))
            observed = torch.cat([part.float() for part in parts]).numpy()
            wrong = np.flatnonzero(observed.view("<u4") != there.row[: len(observed)].view("<u4"))
            if len(wrong):
                column = layout.columns[wrong[0]]
                values = shown(observed[wrong[0]], there.row[wrong[0]])
                return Difference(
                    tick - back, there.tick_ns, f"the observation of {column.stream}", column.name, *values
                )
        if self.run.options.get("normalized"):
            return None
        for stream, digest in zip(layout.spec.media, self.engine.ticks[tick].digests, strict=True):
            value = frame.tensors.get(stream.name)
            if value is not None and media_digest(value) != digest:
                words = (media_digest(value).hex(), digest.hex())
                return Difference(tick, frame.tick_ns, f"the observation of {stream.name}", stream.kind, *words)
        return None

    def _missing(self, tick: int, what: str, recorded: str, computed: str) -> Difference:
        return Difference(tick, tick_grid.tick_ns(tick, self.run.spec.rate_hz), what, "", recorded, computed)


class _PolicyError(RuntimeError):
    """The policy that was given cannot be opened."""


class _Worker(Worker):
    """Stands for the process of the policy: it is as busy as that was."""

    def __init__(self) -> None:
        self.requested: deque[int] = deque(maxlen=8)  # the newest ticks from which a plan was requested

    def submit(self, frame: FusedFrame, tick: int, prefix: Prefix | None = None) -> None:
        self.requested.append(tick)


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values).view(f"<u{values.dtype.itemsize}")


def _replayed(run: RunReader, policy: PolicyReplay, engine: EngineReplay) -> Iterator[Call | Compared]:
    """Replay a run in its order; yield what was computed."""
    for record in run.records():
        found: Call | Compared | None
        if record.topic == EVENTS.name:
            event = run.event(record.data)
            found = policy.take(event) if event else None
        else:
            found = engine.take(record)
        if found:
            yield found


def verify(path: str | Path, policy: str | None = None) -> Verification:
    """Replay a run on the CPU, and compare ticks, observations, plans and commands with the recorded ones, bit for bit.

    Args:
        path: of the run log.
        policy: plans again, given as on the command line; it must give the same plan for the same frame. None: the
            checkpoint of the run, if it planned on the CPU and its file is the same.

    Errors:
        RoboCacheError: not a run log, or it or the policy cannot be read.
    """
    run = RunReader(path)
    found = Verification(notes=run.notes)
    if run.options.get("jpeg") == "gpu":
        run.note("jpeg images were decoded on the GPU, which differs by a few counts")
    engine = EngineReplay(run)
    replay = PolicyReplay(run, engine, policy)
    try:
        for result in _replayed(run, replay, engine):
            if isinstance(result, Compared):
                if result.part:
                    found.add(result.part, result.tick, result.difference)
            elif result.recorded is not None:
                for one, other in zip_longest(result.recorded, result.computed):
                    there = one or other
                    found.add("ticks", run.tick_of(there.tick_ns), tick_difference(run.layout, one, other))
    finally:
        replay.close()
    found.messages = engine.messages
    return found


class _Part(NamedTuple):
    """What a replay computes of some ticks."""

    ticks: dict[int, Tick]  # of the engine
    steps: dict[int, Event]  # of the runner
    differences: list[str]


def _part(path: str | Path, first: int, last: int) -> _Part:
    run = RunReader(path)
    engine = EngineReplay(run)
    found = _Part({}, {}, [])
    replay = PolicyReplay(run, engine, plans=False)
    for result in _replayed(run, replay, engine):
        if isinstance(result, Call):
            ticks = {run.tick_of(tick.tick_ns): tick for tick in result.computed}
            found.ticks.update({number: tick for number, tick in ticks.items() if first <= number <= last})
        elif result.computed and first <= result.tick <= last:
            found.steps[result.tick] = result.computed
            found.differences.extend(str(result.difference) for _ in range(result.difference is not None))
        ends = (last in found.ticks, last in found.steps)  # the runner may be ahead of the engine, or behind it
        if any(ends) and (ends[0] or not engine.messages) and (ends[1] or not replay.begun):
            break
    return found


def cut(path: str | Path, out: str | Path, first: int, last: int, policy: str | None = None) -> Verification:
    """Write the part of a run that recomputes some of its ticks as the whole run does: a file for a bug report.

    Ticks are given by their index on the tick grid, `policy` as of `verify`. Returns the verification of the new file.

    Errors:
        RoboCacheError: the run has not all of these ticks, or the new file exists or cannot be written.
    """
    whole = _part(path, first, last)
    count = len(whole.ticks or whole.steps)
    if not first <= last or count != last - first + 1:
        raise RoboCacheError(
            f"{printable(path, 60)}: ticks {first} to {last}: the run has {number_of(count, 'of them', '')}; "
            "give ticks that --verify names"
        )
    spec = RunReader(path).spec
    reach = reach_ns(FusionEngine(spec, "cpu")) + NS_PER_S
    # How far the messages and the events reach back: as far as needed.
    for history in ((reach, reach), (8 * reach, 8 * reach), (8 * reach, None), (None, None)):
        _write_cut(RunReader(path), Path(out), first, last, whole, *history)
        part = _part(out, first, last)
        ticks = all(not tick_difference(Layout(spec), tick, part.ticks.get(n)) for n, tick in whole.ticks.items())
        steps = {n: pack_event(step) for n, step in whole.steps.items()} == {
            n: pack_event(step) for n, step in part.steps.items()
        }
        if (ticks and steps and whole.differences == part.differences) or history == (None, None):
            break
        Path(out).unlink()
    return verify(out, policy)


def _write_cut(
    run: RunReader, out: Path, first: int, last: int, wanted: _Part, messages_ns: int | None, events_ns: int | None
) -> None:
    """Write the records from some time before the first tick to the last one.

    Messages are written from `messages_ns` before it on, and events of the runner from `events_ns` before it on, of
    which observations are written as messages are; None: all. `wanted` is what is in the run of these ticks.
    """
    begin_ns = tick_grid.tick_ns(first, run.spec.rate_hz)
    starts = {name: 0 if back is None else begin_ns - back for name, back in (("m", messages_ns), ("e", events_ns))}
    metadata = {**run.metadata, "cut": json.dumps({"first": first, "last": last, "of": run.path.name})}
    with file_errors(out):
        file = McapWriter(out, {RUN: metadata})
    declared = (CALLS, EVENTS)
    types = {feed.topic: feed.type for feed in run.spec.feeds} | {TF_STATIC: TF_TYPE}
    types |= {topic.name: topic.type for topic in declared}
    encodings = {topic.name: topic.encoding for topic in declared}
    engine_done, runner_done = not wanted.ticks, not wanted.steps
    channels: dict[str, int] = {}
    with file_errors(out), ExitStack() as closing:
        closing.callback(file.abandon)
        for record in run.records():
            data = record.data
            if record.topic == EVENTS.name:
                event = run.event(data)
                if event is None or runner_done:
                    continue
                if event.name not in ("begin", "ready"):
                    start = "m" if event.name == "plan" else "e"
                    if record.log_ns < starts[start]:
                        continue
                    starts[start] = 0  # all from here on: the times of two threads may step back
                if event.name == "step":
                    tick = event.facts.get("tick")
                    runner_done = tick == max(wanted.steps)
                    if tick not in wanted.steps:
                        data = pack_event(event._replace(facts={**event.facts, "unchecked": True}))
            elif engine_done or (record.log_ns < starts["m"] and record.topic != TF_STATIC):
                continue
            elif record.topic != TF_STATIC:
                starts["m"] = 0
            if record.topic == CALLS.name:
                try:
                    numbers = [run.tick_of(tick.tick_ns) for tick in run.ticks(data)]
                    data = data if numbers and min(numbers) >= first else unchecked_call(data)
                except struct.error:
                    continue  # as a replay of the whole run does
                engine_done = bool(numbers) and max(numbers) >= last
            if record.topic not in channels:
                kind = types.get(record.topic, "")
                encoding, text = encodings.get(record.topic, "cdr"), run.definitions.get(kind, "")
                channels[record.topic] = file.add_channel(record.topic, kind, text, encoding=encoding)
            file.write(channels[record.topic], record.log_ns, record.publish_ns, data)
            if engine_done and runner_done:
                break
        file.add_metadata(RUN_END, {"outcome": "success", "lost": "{}"})
        file.close()
