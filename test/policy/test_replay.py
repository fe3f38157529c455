"""Runs of a policy without ROS: a replay gives the same plans and commands, and names what was altered."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from robocache_ros.cli.commands import app
from robocache_ros.engine import Ingest, tick_grid
from robocache_ros.engine.frames import FusedFrame, split_window
from robocache_ros.errors import RoboCacheError
from robocache_ros.policy.outputs import Outputs
from robocache_ros.policy.plan import Chunk, Prefix
from robocache_ros.policy.policies import identity, open_policy
from robocache_ros.policy.replay import Verification, cut, verify
from robocache_ros.policy.runner import Runner, State, Watchdog
from robocache_ros.policy.worker import answer
from robocache_ros.recorder.mcap import McapWriter
from robocache_ros.recorder.run_log import CALLS, EVENTS, RUN, LoggedEngine, RunLog, RunReader, read_event
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.layout import Layout
from test.fuzz.messages import header, serialize
from test.policy.models import ARM, JOINT, FakeWorker

ROOT = Path(__file__).parents[2]
RATE_HZ = 50
START = 1_000_000
CODE = """
import numpy as np

def wave(frame):
    at = frame["joints"][-1].numpy()
    return np.sin(at[None] + np.arange(30)[:, None] * [0.05, 0.11]).astype(np.float32)

def other(frame):
    return wave(frame) * np.where(frame["joints"][-1, 0] > 20, np.float32(1.0000001), np.float32(1))
"""


class LateWorker(FakeWorker):
    """A real policy whose answers a test triggers."""

    def __init__(self, policy: str, spec: FusionSpec) -> None:
        super().__init__()
        self._policy = open_policy(policy, spec)

    @property
    def busy(self) -> bool:
        return bool(self.requests or self.dead)

    def submit(self, frame: FusedFrame, tick: int, prefix: Prefix | None = None) -> None:
        super().submit(frame, tick, prefix)
        self._frame = frame

    def answer(self) -> None:
        if self.requests:
            self.replies.append(answer(self._policy, self._frame, self.requests.pop()))

    def restart(self) -> None:
        super().restart()
        self.requests.clear()


def outputs_of(output: dict[str, Any] | None = None, **run: Any) -> Outputs:
    streams = ARM | {"joints": ARM["joints"] | {"on_invalid": "hold"}}
    run = {"coast_ticks": 8} | run | ({"outputs": {"action": output}} if output else {})
    spec = load_spec({"robocache": 1, "horizon": 3, "delay_ms": 0, "streams": streams, "run": run})
    return Outputs(spec, spec.run)


def play(path: Path, policy: str, seed: int, outputs: Outputs, ticks: int = 300) -> list[Any]:
    """Log a run of an engine and a runner, with all that may happen to them; returns its steps."""
    random_ = random.Random(seed)
    spec = outputs.spec
    engine, worker = LoggedEngine(spec), LateWorker(policy, spec)
    ingest = Ingest(spec, engine)
    log = engine.run_log = RunLog(path, spec, {}, {})
    runner = Runner(outputs, worker, log, identity(policy))
    steps, window = [], np.zeros((0, engine.layout.row_width), np.float32)
    tick = START
    for count in range(ticks):
        tick += 1
        now_ns = tick_grid.tick_ns(tick, RATE_HZ)
        for _ in range(random_.choice((1, 1, 1, 1, 2))):  # some joints come twice
            place = [count / 10, -count / 10]
            data = serialize(JOINT, {"header": header(now_ns), "name": ["a", "b"], "position": place})
            if random_.random() < 0.95:  # some are lost
                log.message("/joints", data, now_ns)
                ingest.serialized("joints", data, now_ns)
        while len(frames := engine.advance(now_ns, limit=1)):
            window = np.concatenate([window, frames.rows().numpy()])[-spec.horizon :]
            if len(window) == spec.horizon:
                at = tick_grid.first_at_or_after(int(frames.ticks_ns[-1]), RATE_HZ)
                runner.frame(split_window(engine.layout, int(frames.ticks_ns[-1]), torch.from_numpy(window.copy())), at)
        if random_.random() < 0.3:
            worker.answer()
        happening(random_, runner, worker, tick, count)
        if random_.random() < 0.9:  # else the next call steps two ticks
            for step in runner.advance(now_ns):
                runner.messages(step, now_ns)
                steps.append(step)
        if count == ticks * 2 // 3:
            tick -= 200  # the clock goes back
    log.close()
    return steps


def happening(random_: random.Random, runner: Runner, worker: LateWorker, tick: int, count: int) -> None:
    """Do one of what other processes and people do."""
    what = random_.randrange(60)
    if what < 3:  # late, early and sometimes twice
        rows = np.array([[random_.uniform(-1, 1)] * 2] * 20, np.float32)
        for _ in range(random_.choice((1, 2))):
            runner.add(Chunk(tick - random_.randrange(-3, 15), rows))
    elif what == 3:
        runner.add(Chunk(tick, np.full((3, random_.choice((1, 2))), np.nan, np.float32)))
    elif what == 4:
        runner.take_over(not runner.in_takeover)
    elif what == 5:
        runner.stop("a person")
    elif what == 6:
        worker.dead = "its process ended with exit code -9"
    elif runner.in_takeover and what < 30:
        runner.operator("action", np.array([random_.uniform(-1, 1), np.nan if what == 7 else 0.5], np.float32))
    elif runner.state is State.STOP and what < 20:
        runner.arm()


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy") / "mine.py"
    path.write_text(CODE)
    return path


@pytest.fixture(scope="module")
def wave(code):
    return f"{code}:wave"


@pytest.fixture(scope="module")
def log(wave, code):
    play(code.with_name("run.mcap"), wave, 3, outputs_of(blend="none"))
    return code.with_name("run.mcap")


OUTPUTS: dict[str, dict[str, Any] | None] = {
    "array": {"upper": 0.95, "max_step": 0.6},
    "velocity": {"type": "geometry_msgs/msg/TwistStamped"},
    "trajectory": {"type": "trajectory_msgs/msg/JointTrajectory", "names": ["a", "b"]},
}


@pytest.mark.parametrize(
    ("output", "stop", "blend"),
    [
        *(("array", "hold", "none"), ("array", "hold", "crossfade"), ("array", "hold", "ensemble")),
        *(("trajectory", "none", "none"), ("trajectory", "none", "crossfade"), ("trajectory", "none", "ensemble")),
        ("velocity", "zero-velocity", "crossfade"),
    ],
)
def test_a_run_is_recomputed_to_the_bit_whatever_happens_in_it(tmp_path, wave, output, stop, blend):
    outputs = outputs_of(OUTPUTS[output], blend=blend, stop=stop, replan_every=5, action_latency_ms=30.0)
    steps = play(tmp_path / "run.mcap", wave, len(output + blend), outputs)

    found = verify(tmp_path / "run.mcap", policy=wave)

    assert (str(found.first or ""), found.notes) == ("", [])
    assert found.commands == len(steps) > 200
    assert found.plans > 10
    assert found.observations >= found.plans
    assert found.ticks > 250
    assert {step.origin for step in steps} >= {"policy", "operator"}
    assert {step.state for step in steps} >= {State.WARMUP, State.RUN, State.STOP}


def test_a_stop_for_the_same_reason_in_other_words_is_no_difference(tmp_path, wave, monkeypatch):
    steps = play(tmp_path / "run.mcap", wave, 1, outputs_of(OUTPUTS["array"], blend="none"))
    assert State.STOP in {step.state for step in steps}
    stop = Watchdog.stop
    monkeypatch.setattr(Watchdog, "stop", lambda self, reason: stop(self, f"since {reason}"))

    assert verify(tmp_path / "run.mcap", policy=wave).first is None


def altered(log: Path, path: Path, find: Callable[[bytes], int]) -> Verification:
    """Verify a run of which one bit was flipped."""
    content = bytearray(log.read_bytes())
    content[find(content)] ^= 1
    path.write_bytes(content)
    return verify(path)


def executed(log: Path, after: int = 0) -> tuple[Any, Any, int]:
    """A reply of the policy, the first step that is a row of its chunk alone, and the number of that row.

    Args:
        log: of the run.
        after: a tick.
    """
    events = [event for event in RunReader(log).events() if event.name == "reply" or event.facts.get("tick", 0) > after]
    for event in events:
        is_checked = event.name == "step" and "unchecked" not in event.facts
        if is_checked and event.facts["origin"] == "policy" and len(event.facts["sources"]) == 1:
            ((observed, _),) = event.facts["sources"]
            for reply in events:
                if reply.name == "reply" and reply.facts["observed"] == observed:
                    return reply, event, event.facts["tick"] - observed
    raise AssertionError("no such step")


def test_one_flipped_bit_of_a_chunk_names_the_tick_its_plan_and_its_command(log, wave, tmp_path):
    reply, step, row = executed(log)
    chunk = reply.arrays["actions"].tobytes()

    found = altered(log, tmp_path / "run.mcap", lambda content: content.index(chunk) + row * 8 + 4)  # its second column

    assert (found.first.tick, found.first.stream, found.first.column) == (step.facts["tick"], "action", "action.1")
    assert found.first.recorded == repr(float(step.arrays["row"][1]))
    assert found.first.computed != found.first.recorded
    assert "the checksum of the chunk" in found.notes[0]

    again = verify(tmp_path / "run.mcap", policy=wave)
    assert (again.first.tick, again.first.stream) == (reply.facts["tick"], "the plan")
    assert again.first.column == f"row {row} of action.1"
    assert again.different["plans"] == 1


def test_one_flipped_bit_of_an_observation_names_its_stream_and_column(log, tmp_path):
    plan = next(event for event in RunReader(log).events() if event.name == "plan")
    joints = plan.arrays["tensors/joints"].tobytes()

    found = altered(log, tmp_path / "run.mcap", lambda content: content.index(joints) + len(joints) - 8)

    assert (found.first.tick, found.first.stream) == (plan.facts["tick"], "the observation of joints")
    assert found.first.column == "joints.a"
    assert found.different == {"observations": 1}


def test_one_flipped_bit_of_a_command_a_plan_or_the_metadata_is_named(log, tmp_path):
    _, step, _ = executed(log)
    row = step.arrays["row"].tobytes()
    head = f'"tick": {step.facts["tick"]}, "state"'.encode()

    found = altered(log, tmp_path / "run.mcap", lambda content: content.index(row, content.index(head)) + 1)
    assert (found.first.tick, found.first.column) == (step.facts["tick"], "action.0")
    assert found.different == {"commands": 1}

    plan = next(event for event in RunReader(log).events() if event.name == "plan")
    head = b'"event": "plan", "facts": {"tick": %d' % plan.facts["tick"]
    found = altered(log, tmp_path / "run.mcap", lambda content: content.index(head) + len(head) - 1)
    assert (found.first.tick, found.first.stream) == (plan.facts["tick"] ^ 1, "the plan")
    with pytest.raises(RoboCacheError, match="its metadata are damaged"):
        altered(log, tmp_path / "run.mcap", lambda content: content.index(b'"streams"'))


def test_another_policy_is_named_by_the_first_plan_that_differs(log, code):
    found = verify(log, policy=f"{code}:other")

    assert (found.first.stream, found.first.column) == ("the plan", "row 0 of action.0")
    assert set(found.different) == {"plans"}
    assert 0 < found.different["plans"] < found.plans
    with pytest.raises(RoboCacheError, match="has no function nothing"):
        verify(log, policy=f"{code}:nothing")


def test_a_function_does_not_plan_again_unless_it_is_given(log):
    found = verify(log)
    assert (found.plans, found.first) == (0, None)
    (note,) = found.notes
    assert note == "the policy has not planned again: it is not a checkpoint; give --policy to compare its plans"


def test_a_part_of_a_run_recomputes_its_commands(log, wave, tmp_path):
    first = executed(log, START + 100)[1].facts["tick"] - 4

    part = cut(log, tmp_path / "part.mcap", first, first + 9)

    assert (part.first, part.ticks, part.commands) == (None, 10, 10)
    assert (part.first_tick, part.last_tick) == (first, first + 9)
    assert (tmp_path / "part.mcap").stat().st_size < log.stat().st_size / 2
    assert verify(tmp_path / "part.mcap", policy=wave).plans > 0

    reply, step, row = executed(tmp_path / "part.mcap")
    chunk = reply.arrays["actions"].tobytes()
    found = altered(tmp_path / "part.mcap", tmp_path / "b.mcap", lambda content: content.index(chunk) + row * 8)
    assert found.first.tick == step.facts["tick"]


def test_a_part_of_a_run_is_complete_where_the_times_of_its_threads_step_back(log, tmp_path):
    run, path = RunReader(log), tmp_path / "late.mcap"
    file = McapWriter(path, {RUN: run.metadata})
    topics = [(feed.topic, feed.type, "cdr") for feed in run.spec.feeds]
    topics += [(topic.name, topic.type, topic.encoding) for topic in (CALLS, EVENTS)]
    channels = {
        name: file.add_channel(name, kind, run.definitions.get(kind, ""), encoding=encoding)
        for name, kind, encoding in topics
    }
    first = executed(log, START + 100)[1].facts["tick"] - 4
    for record in run.records():
        event = read_event(record.data) if record.topic == EVENTS.name else None
        is_late = event and event.name == "step" and event.facts["tick"] == first - 5
        file.write(channels[record.topic], 0 if is_late else record.log_ns, record.publish_ns, record.data)
    file.close()

    part = cut(path, tmp_path / "part.mcap", first, first + 9)

    assert (part.first, part.ticks, part.commands) == (None, 10, 10)


def test_damage_anywhere_is_at_most_a_users_error(wave, tmp_path):
    path = tmp_path / "run.mcap"
    play(path, wave, 3, outputs_of(blend="none"), ticks=45)
    complete = path.read_bytes()
    assert verify(path, policy=wave).plans > 2
    for seed in range(60):
        random_, content = random.Random(seed), bytearray(complete)
        for _ in range(3):
            content[random_.randrange(len(content))] ^= 1 << random_.randrange(8)
        path.write_bytes(content[: random_.choice((len(content), random_.randrange(len(content))))])
        with suppress(RoboCacheError):
            verify(path, policy=wave)


def test_the_command_prints_what_is_equal_and_what_differs(log, code):
    for policy, status, texts in (
        ("wave", 0, ("commands equal", "plans equal")),
        ("other", 1, ("the first difference: tick ", "plans differ")),
    ):
        done = CliRunner().invoke(app, ["replay", str(log), "--verify", "--policy", f"{code}:{policy}"])
        assert done.exit_code == status
        assert all(text in done.output for text in texts)


def test_a_checkpoint_of_the_run_plans_again_unless_its_file_has_changed(tmp_path):
    raw = yaml.safe_load((ROOT / "config" / "so101.yaml").read_text())
    del raw["streams"]["front"]
    spec = load_spec(raw | {"run": {"replan_every": 2}})
    checkpoint = Path(shutil.copy(ROOT / "examples" / "so101_policy.pt", tmp_path / "checkpoint.pt"))
    worker, log, layout = LateWorker(str(checkpoint), spec), RunLog(tmp_path / "run.mcap", spec), Layout(spec)
    runner = Runner(Outputs(spec, spec.run), worker, log, identity(str(checkpoint)))
    generator = np.random.default_rng(0)
    for tick in range(START, START + 8):
        now_ns = tick_grid.tick_ns(tick, RATE_HZ)
        window = generator.normal(0, 0.1, (spec.horizon, layout.row_width)).astype(np.float32)
        window[:, layout.width :] = 1  # valid
        runner.frame(split_window(layout, now_ns, torch.from_numpy(window)), tick)
        worker.answer()
        for step in runner.advance(now_ns):
            runner.messages(step, now_ns)
    log.close()

    found = verify(tmp_path / "run.mcap")
    assert (found.first, found.notes) == (None, [])
    assert (found.plans, found.commands, found.ticks) == (4, 8, 0)

    with checkpoint.open("ab") as file:
        file.write(b"!")
    found = verify(tmp_path / "run.mcap")
    assert (found.first, found.plans) == (None, 0)
    assert "checkpoint.pt has changed; give --policy to compare its plans" in found.notes[0]
