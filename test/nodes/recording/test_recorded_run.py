"""Live runs of the fusion node and of a policy, recorded and replayed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float32MultiArray, Float64MultiArray
from std_srvs.srv import SetBool, Trigger

from robocache_ros.policy.replay import cut, verify
from robocache_ros.recorder.run_log import RunReader
from test.nodes.rig import ACTION, PATIENCE_S, publishing, stamped, until

CODE = """
import time
import numpy as np

def late(frame):
    '''Answer after 0 to 250 ms.'''
    place = frame["joints"][-1].numpy()
    time.sleep(0.05 * (frame.tick_ns // 20_000_000 % 6))
    return np.sin(place + np.arange(60)[:, None] * np.float32(0.01)).astype(np.float32)
"""
SPEC: dict[str, Any] = {
    "robocache": 1,
    "horizon": 2,
    "delay_ms": 20,
    "streams": {
        "joints": {"topic": "/joints", "type": "sensor_msgs/msg/JointState", "names": ["a", "b"], "on_invalid": "hold"},
        "camera": {
            "topic": "/camera", "type": "sensor_msgs/msg/Image", "image": {"size": [24, 32]}, "max_age_ms": 1000,
        },
        "action": {"topic": "/command", "type": "std_msgs/msg/Float64MultiArray", "dim": 2, **ACTION},
    },
    "run": {
        "replan_every": 4,
        "coast_ticks": 1000,
        "invalid_ticks": 1000,
        "outputs": {"action": {"takeover": "/operator"}},
    },
}  # fmt: skip


class Robot:
    """Publishes joints of which some are late, lost or twice, images, and the commands of an operator."""

    def __init__(self, rig: Any) -> None:
        self._count = 0
        self._joints, self._images = rig.publisher(JointState, "/joints"), rig.publisher(Image, "/camera")
        self._operator = rig.publisher(Float64MultiArray, "/operator")

    def publish(self) -> None:
        self._count += 1
        if self._count % 7 == 0:
            return
        now_ns = time.time_ns() - (0, 300_000_000, 5_000_000)[self._count % 3]
        message = stamped(JointState(name=["a", "b"], position=[self._count / 100, -1.0]), now_ns)
        for _ in range(1 + (self._count % 5 == 0)):
            self._joints.publish(message)
        if self._count % 6 == 0:
            pixels = bytes([self._count % 256]) * (24 * 32 * 3)
            image = Image(height=24, width=32, encoding="rgb8", step=96, data=pixels, header=message.header)
            self._images.publish(image)
            self._operator.publish(Float64MultiArray(data=[self._count / 100, 0.5]))


@contextmanager
def busy_machine() -> Iterator[None]:
    """More processes that compute than processors."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


LONG = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("commands", "load"),
    [pytest.param(20, nullcontext, id="short"), pytest.param(500, busy_machine, id="long, under load", marks=LONG)],
)
def test_a_live_run_of_a_policy_that_is_taken_over_stopped_and_armed_is_recomputed_to_the_bit(rig, commands, load):
    path, code = rig.tmp_path / "run.mcap", rig.tmp_path / "mine.py"
    code.write_text(CODE)

    def more(count: int, what: str) -> None:
        before = len(sent)
        until(lambda: program.runs() and len(sent) > before + count, what, PATIENCE_S + count)

    with load():
        program = rig.program("run", f"{code}:late", "--spec", rig.write(SPEC), "--record", path)
        sent = rig.listen(Float64MultiArray, "/command")
        with publishing(Robot(rig).publish, 0.005):
            more(commands, "commands of the policy")
            rig.call(SetBool, "/policy_runner/takeover", data=True)
            more(commands, "commands of the operator")
            rig.call(SetBool, "/policy_runner/takeover", data=False)
            rig.call(Trigger, "/policy_runner/stop")
            more(5, "commands after a stop")
            rig.call(Trigger, "/policy_runner/arm")
            more(commands, "commands after arming")
            assert program.stop() == 0, program.log.read_text()

    found = verify(path, policy=f"{code}:late")  # with its plans
    assert (str(found.first or ""), found.notes) == ("", [])
    assert found.commands > 3 * commands
    assert found.ticks > 3 * commands
    assert found.observations >= found.plans > 3
    events = list(RunReader(path).events())
    steps = [event.facts["tick"] for event in events if event.name == "step"]
    middle = steps[len(steps) // 2]
    part = cut(path, path.with_name("part.mcap"), middle, middle + 5)
    assert (str(part.first or ""), part.ticks, part.commands) == ("", 6, 6)
    names = "begin ready frame plan reply advance step takeover operator stop arm"
    assert {event.name for event in events} == {*names.split()}


def test_a_live_run_is_recomputed_to_the_bit(rig, joint_spec):
    path = rig.tmp_path / "run.mcap"
    node = rig.fusion(joint_spec, record_run=str(path))
    node.autostart()
    joints, command = rig.publisher(JointState, "/joints"), rig.publisher(Float32MultiArray, "/command")
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    sent = 0

    def publish() -> None:
        nonlocal sent
        sent += 1
        now_ns = time.time_ns() - (0, 300_000_000, 5_000_000)[sent % 3]  # some are late
        message = stamped(JointState(name=["a", "b"], position=[float(sent), -1.0]), now_ns)
        joints.publish(message)
        joints.publish(message)  # a duplicate
        command.publish(Float32MultiArray(data=[float(sent)]))

    with publishing(publish, 0.005):
        until(lambda: len(fused) > 50, "ticks")
        assert rig.change_state("deactivate")
        assert rig.change_state("activate")
        before = len(fused)
        until(lambda: len(fused) > before + 20, "ticks after it")
        assert rig.change_state("deactivate")
    assert rig.change_state("cleanup")

    found = verify(path)

    assert (found.first, found.notes) == (None, [])
    assert found.ticks >= len(fused) - 1
    assert found.messages > 100
