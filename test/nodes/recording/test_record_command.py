"""`robocache record` by lines of stdin."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("std_srvs")
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray

from robocache_ros.recorder.episodes import read_episode
from test.nodes.rig import publishing, repeating, until


def test_lines_start_and_end_episodes_and_topics_are_remapped(rig, joint_spec):
    joints, command = rig.publisher(JointState, "/left/joints"), rig.publisher(Float32MultiArray, "/command")
    out = rig.tmp_path / "recordings"
    words = ["record", "--spec", rig.write(joint_spec), "--out", out, "--task", "Lift the operator's cube"]
    process = rig.program(*words, "--ros-args", "-r", "/joints:=/left/joints")

    def publish() -> None:
        joints.publish(JointState(name=["a", "b"], position=[1.0, 2.0]))
        command.publish(Float32MultiArray(data=[1.0]))

    def files(pattern: str) -> list[str]:
        assert process.runs()
        return sorted(str(path.relative_to(out)) for path in out.glob(pattern))

    with publishing(publish):
        started = repeating(
            lambda: process.say("start"), lambda: files("*.part")
        )  # refused while the streams are silent
        until(started, "the first episode")
        process.say("success")
        until(lambda: files("episode_000001.mcap"), "its end")
        process.say("")
        until(lambda: files("*2.mcap.part"), "the second one")
        process.say("r")
        until(lambda: files("trash/*") == ["trash/episode_000002.mcap"] and files("*3.mcap.part"), "another")
        process.say("f")
        until(lambda: files("episode_000003.mcap"), "its end")
    process.say("q")
    assert process.wait() == 0, process.log.read_text()
    found = read_episode(out / "episode_000003.mcap")
    assert (found.labels.task, found.outcome) == ("Lift the operator's cube", "failure")
