"""Two robots in one graph: fusion node, policy runner and recorder of each in a namespace, with one spec."""

from __future__ import annotations

from typing import Any

import pytest

from test.nodes.rig import ACTION, repeating, stamped, until

pytest.importorskip("std_srvs", reason="needs std_srvs (the ros extra, or a sourced ROS 2)")
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import SetBool, Trigger

from robocache_ros.bags.reader import Bag
from robocache_ros.nodes.episode_recorder import EpisodeRecorder
from robocache_ros.nodes.fusion_node import FusionNode
from robocache_ros.nodes.policy_runner import PolicyRunner

pytestmark = pytest.mark.usefixtures("forked_policies")

SPEC: dict[str, Any] = {
    "robocache": 1,
    "delay_ms": 20,
    "streams": {
        "joints": {
            "topic": "joint_states", "type": "sensor_msgs/msg/JointState", "names": ["a", "b"], "on_invalid": "hold",
        },
        "arm": {
            "topic": "arm/commands", "type": "std_msgs/msg/Float64MultiArray", "dim": 2, "on_invalid": "mask", **ACTION,
        },
    },
}  # fmt: skip
POLICY = """
def follow(frame):
    return [list(frame["joints"][-1])] * 40
"""
ROBOTS = {"left": 1.0, "right": 2.0}  # the position of the joints


def test_each_robot_is_commanded_and_recorded_by_its_own_nodes(rig, tmp_path):
    spec = rig.write(SPEC)
    (tmp_path / "mine.py").write_text(POLICY)

    def start(kind: Any, robot: str, **values: Any) -> None:
        remap = ["--ros-args", "-r", "joint_states:=joints"]  # as a driver of another maker names it
        rig.make(kind, {"spec": str(spec), **values}, namespace=robot, cli_args=remap).autostart()

    joints, commands = {}, {}
    for robot in ROBOTS:
        start(FusionNode, robot)
        start(PolicyRunner, robot, policy=f"{tmp_path / 'mine.py'}:follow")
        start(EpisodeRecorder, robot, out=str(tmp_path / robot), task="follow")
        joints[robot] = rig.publisher(JointState, f"/{robot}/joints")
        commands[robot] = rig.listen(Float64MultiArray, f"/{robot}/arm/commands")

    def move() -> None:
        for robot, value in ROBOTS.items():
            joints[robot].publish(stamped(JointState(name=["a", "b"], position=[value, value])))

    until(repeating(move, lambda: all(len(each) > 5 for each in commands.values()), 0.01), "commands of both")

    def call(service: type[Any], name: str, request: Any) -> Any:
        client = rig.node.create_client(service, name)
        future = client.call_async(request)
        until(repeating(move, future.done, 0.01), name)
        return future.result()

    for robot in ROBOTS:
        started = call(Trigger, f"/{robot}/episode_recorder/start", Trigger.Request())
        assert started.success, started.message
    count = {robot: len(each) for robot, each in commands.items()}
    until(repeating(move, lambda: all(len(commands[each]) > count[each] + 20 for each in ROBOTS), 0.01), "an episode")
    for robot in ROBOTS:
        ended = call(SetBool, f"/{robot}/episode_recorder/end", SetBool.Request(data=True))
        assert ended.success, ended.message

    for robot, value in ROBOTS.items():
        assert {tuple(message.data) for message in commands[robot].messages} == {(value, value)}
        (file,) = (tmp_path / robot).glob("*.mcap")
        with Bag(file) as bag:
            recorded = {name for name, topic in bag.topics.items() if topic.count}
        assert f"/{robot}/joint_states" in recorded
        assert f"/{robot}/policy_runner/executed" in recorded
        assert not any(name.startswith(f"/{other}/") for name in recorded for other in ROBOTS if other != robot)
