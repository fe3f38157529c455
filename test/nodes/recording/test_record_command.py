"""`robocache record` by lines of stdin."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("std_srvs")
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray

from robocache_ros.recorder.episodes import read_episode
from test import forked
from test.nodes.rig import repeating, until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def _robot(rig):
    joints, command = rig.publisher(JointState, "/left/joints"), rig.publisher(Float32MultiArray, "/command")

    def publish() -> None:
        joints.publish(JointState(name=["a", "b"], position=[1.0, 2.0]))
        command.publish(Float32MultiArray(data=[1.0]))

    timer = rig.node.create_timer(0.01, publish)
    yield
    rig.node.destroy_timer(timer)


@pytest.mark.usefixtures("_robot")
def test_lines_start_and_end_episodes_and_topics_are_remapped(rig, joint_spec):
    out = rig.tmp_path / "recordings"
    log = rig.tmp_path / "log"
    command = [sys.executable, "-m", "robocache_ros", "record", "--spec", rig.write(joint_spec), "--out", out]
    with log.open("w") as output:
        process = forked.Popen(
            [*command, "--task", "Lift the operator's cube", "--ros-args", "-r", "/joints:=/left/joints"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            preload=forked.NODE,
        )

    def say(line: str) -> None:
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()

    def files(pattern: str) -> list[str]:
        assert process.poll() is None, log.read_text()
        return sorted(str(path.relative_to(out)) for path in out.glob(pattern))

    try:
        started = repeating(lambda: say("start"), lambda: files("*.part"))  # refused while the streams are silent
        until(started, "the first episode")
        say("success")
        until(lambda: files("episode_000001.mcap"), "its end")
        say("")
        until(lambda: files("*2.mcap.part"), "the second one")
        say("r")
        until(lambda: files("trash/*") == ["trash/episode_000002.mcap"] and files("*3.mcap.part"), "another")
        say("f")
        until(lambda: files("episode_000003.mcap"), "its end")
        say("q")
        assert process.wait(120) == 0, log.read_text()
    finally:
        process.send_signal(signal.SIGKILL)
        process.stdin.close()
    found = read_episode(out / "episode_000003.mcap")
    assert (found.labels.task, found.outcome) == ("Lift the operator's cube", "failure")
