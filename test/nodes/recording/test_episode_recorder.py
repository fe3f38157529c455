"""The episode recorder over DDS: its services, its state, the bytes in its files; `robocache record`."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from rclpy.qos import DurabilityPolicy, ReliabilityPolicy
from rclpy.serialization import serialize_message
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import Float32MultiArray, String
from std_srvs.srv import SetBool, Trigger

from robocache_ros.bags.reader import Bag
from robocache_ros.recorder.episodes import read_episode
from test.nodes.rig import publishing, repeating, stamped, until


class Robot:
    """Publishes joints and a command, once a call; keeps the messages."""

    def __init__(self, rig: Any, joints: str = "/joints") -> None:
        self._joints, self._command = rig.publisher(JointState, joints), rig.publisher(Float32MultiArray, "/command")
        self.sent: list[bytes] = []
        self.silent = False

    def publish(self) -> None:
        """Publish."""
        message = stamped(JointState(name=["a", "b"], position=[float(len(self.sent)), 0.0]), len(self.sent) * 10**9)
        self.sent.append(serialize_message(message))
        self._joints.publish(self.sent[-1])
        if not self.silent:
            self._command.publish(Float32MultiArray(data=[1.0]))


@pytest.fixture
def robot(rig):
    robot = Robot(rig)
    with publishing(robot.publish):
        yield robot


def ask(rig: Any, action: str, **fields: bool) -> Any:
    return rig.call(SetBool if fields else Trigger, f"/episode_recorder/{action}", **fields)


def test_episodes_have_the_bytes_that_were_published_whatever_they_are(rig, robot, joint_spec):
    latched = rig.publisher(String, "/robot_description", durability=DurabilityPolicy.TRANSIENT_LOCAL, depth=1)
    latched.publish(String(data="<robot/>"))
    odd, garbage = rig.publisher(Float32MultiArray, "/odd"), struct.pack("<4sI", b"\0\1\0\0", 0xFFFFFFFF)
    node = rig.recorder(joint_spec, task="Lift the cube", extra="/robot_description /odd", robot="so101")
    states = rig.listen(String, "/episode_recorder/state", latched=True)
    until(lambda: len(states) and not json.loads(states.newest.data)["silent"], "both streams")
    until(lambda: any(t.topic.latched and t.latched for t in node._receiver.topics), "the latched topic")
    until(odd.get_subscription_count, "the subscription to the extra topic")

    wanted = {"/joints": 40, "/command": 20, "/odd": 0}
    files: list[Path] = []
    for success in (True, False):
        started = ask(rig, "start")
        assert started.success, started.message
        already = ask(rig, "start")
        assert not already.success
        assert "is being recorded; end it first" in already.message
        odd.publish(garbage)
        received = node._receiver.episode.received
        until(lambda received=received: all(received[topic] > wanted[topic] for topic in wanted), "messages")
        assert ask(rig, "end", data=success).success
        files.append(node._last[0])

    sent = list(robot.sent)
    for file, outcome in zip(files, ("success", "failure"), strict=True):
        with Bag(file) as bag:
            joints = [message.data for message in bag.messages(["/joints"])]
            assert bag.topics["/joints"].type == "sensor_msgs/msg/JointState"
            assert bag.topics["/robot_description"].latched
            description = [message.data for message in bag.messages(["/robot_description"])]
            assert description == [serialize_message(String(data="<robot/>"))]
            assert len(list(bag.messages(["/command"]))) > 20
            assert [message.data for message in bag.messages(["/odd"])] == [garbage]
            assert "std_msgs/Header header" in bag.definitions["sensor_msgs/msg/JointState"]
        at = sent.index(joints[0])
        assert len(joints) > 40
        assert joints == sent[at : at + len(joints)]
        found = read_episode(file)
        assert (found.labels.task, found.labels.robot) == ("Lift the cube", "so101")
        assert (found.outcome, found.lost) == (outcome, {})


def test_start_names_the_silent_stream(rig, robot, joint_spec):
    robot.silent = True
    node = rig.recorder(joint_spec)
    until(lambda: node.silent() == ["command (/command)"], "the joints")
    refused = ask(rig, "start")
    assert not refused.success
    assert refused.message == "start: command (/command) is silent; start the drivers, or remove them from the spec"
    robot.silent = False
    until(lambda: not node.silent(), "the command")
    assert ask(rig, "start").success


@pytest.fixture
def unchecked(monkeypatch):
    """Recorders that look at publishers only when a message comes or an episode starts."""
    monkeypatch.setattr("robocache_ros.nodes.episode_recorder.CHECK_S", 1e6)


def requested(rig: Any, topic: str) -> tuple[Any, Any]:
    """The reliability and the durability that the recorder requests of a topic."""
    found = rig.node.get_subscriptions_info_by_topic(topic)
    [qos] = [entry.qos_profile for entry in found if entry.node_name == "episode_recorder"]
    return qos.reliability, qos.durability


def test_an_episode_starts_once_its_streams_are_received_as_their_publishers_offer(rig, joint_spec, unchecked):
    reliable, lossy = ReliabilityPolicy.RELIABLE, ReliabilityPolicy.BEST_EFFORT
    latched, volatile = DurabilityPolicy.TRANSIENT_LOCAL, DurabilityPolicy.VOLATILE
    for stream in joint_spec["streams"].values():
        del stream["qos"]
    command = joint_spec["streams"]["command"]
    joint_spec["streams"]["goal"] = command | {"topic": "/goal"}
    joint_spec["streams"]["scene"] = command | {"topic": "/scene", "on_invalid": "hold"}
    node = rig.recorder(joint_spec)
    assert not rig.node.get_publishers_info_by_topic("/joints")  # the recorder can only guess

    publishers = [
        rig.publisher(JointState, "/joints"),
        rig.publisher(Float32MultiArray, "/command"),
        rig.publisher(Float32MultiArray, "/command", reliability=lossy),
        rig.publisher(Float32MultiArray, "/goal", durability=latched),
        rig.publisher(Float32MultiArray, "/scene"),
    ]

    def publish() -> None:
        publishers[0].publish(JointState(name=["a", "b"], position=[0.0, 0.0]))
        for publisher in publishers[1:]:
            publisher.publish(Float32MultiArray(data=[1.0]))

    until(repeating(publish, lambda: not node.silent(), 0.01), "all streams")
    assert ask(rig, "start").success

    assert requested(rig, "/joints") == (reliable, volatile)
    assert requested(rig, "/command") == (lossy, volatile)  # what both offer
    assert requested(rig, "/goal") == (reliable, latched)
    assert requested(rig, "/scene") == (reliable, volatile)


def test_an_episode_starts_once_a_publisher_that_replaced_another_is_received(rig, joint_spec, unchecked):
    command = rig.publisher(Float32MultiArray, "/command")
    joints = rig.publisher(JointState, "/lossy", reliability=ReliabilityPolicy.BEST_EFFORT)
    joint_spec["streams"]["joints"] |= {"topic": "/lossy", "qos": {}}
    node = rig.recorder(joint_spec)

    def publish() -> None:
        command.publish(Float32MultiArray(data=[1.0]))
        joints.publish(JointState(name=["a", "b"], position=[0.0, 0.0]))

    until(repeating(publish, lambda: not node.silent(), 0.01), "both streams")
    rig.node.destroy_publisher(joints)
    joints = rig.publisher(JointState, "/lossy")
    until(repeating(publish, lambda: ask(rig, "start").success, 0.01), "the start")
    assert requested(rig, "/lossy")[0] == ReliabilityPolicy.RELIABLE


def test_discard_and_rerecord_move_files_to_the_trash(rig, robot, joint_spec):
    node = rig.recorder(joint_spec)
    out = rig.tmp_path / "recordings"
    until(lambda: not node.silent(), "both streams")

    def names(folder: Path) -> list[str]:
        return sorted(file.name for file in folder.glob("*.mcap*"))

    assert not ask(rig, "discard").success
    assert ask(rig, "start").success
    assert ask(rig, "discard").success
    assert (names(out), names(out / "trash")) == ([], ["episode_000001.mcap"])
    assert ask(rig, "start").success
    assert ask(rig, "rerecord").success
    assert names(out) == ["episode_000003.mcap.part"]
    assert names(out / "trash") == ["episode_000001.mcap", "episode_000002.mcap"]
    assert ask(rig, "end", data=True).success
    assert ask(rig, "rerecord").success  # the last one, which has ended
    assert len(names(out / "trash")) == 3
    assert rig.change_state("deactivate", "/episode_recorder")
    found = read_episode(out / "episode_000004.mcap")
    assert found.outcome == "unknown"
    refused = ask(rig, "start")
    assert not refused.success
    assert "it is not active" in refused.message


def test_buttons_and_a_pedal_act_once_for_each_press(rig, robot, joint_spec, plug):
    joy = rig.publisher(Joy, "/joy")
    pedals = {"pedal": "/dev/pedal", "pedal_keys": "toggle=KEY_B,failure=KEY_C"}
    node = rig.recorder(joint_spec, joy_buttons="discard=1,start=0", **pedals)
    until(lambda: not node.silent(), "both streams")
    until(joy.get_subscription_count, "the game pad's subscriber")

    for button in (1, 1, 1, 0):  # a game pad repeats its state
        joy.publish(Joy(buttons=[button]))
    until(lambda: node.recording and node._pressed == [0], "the start by a button")
    plug.send("KEY_B", 1, 2, 2, 0)
    until(lambda: node._last, "the end by a pedal")
    assert node._last[1] == "success"
    plug.send("KEY_B", 1)
    until(lambda: node.recording, "the start by a pedal")
    plug.send("KEY_C", 1)
    until(lambda: node._last[1] == "failure", "the end by a pedal")

    # What was pressed before does not count after the node is activated again.
    joy.publish(Joy(buttons=[1, 0]))
    until(lambda: node.recording, "the start by a button")
    joy.publish(Joy(buttons=[1, 1]))
    until(lambda: node._last[1] == "discarded", "the end by another")
    assert rig.change_state("deactivate", "/episode_recorder")
    assert rig.change_state("activate", "/episode_recorder")
    until(lambda: not node.silent(), "both streams")
    until(joy.get_subscription_count, "the game pad's subscriber")
    joy.publish(Joy(buttons=[1]))
    until(lambda: node.recording, "the start by a button again")
    assert plug.opened == 2


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"pedal": "/dev/none"}, "parameter pedal: /dev/none: cannot be opened (No such file or directory)"),
        ({"pedal": "/dev/none", "pedal_keys": "jump=KEY_A"}, "pedal_keys: 'jump=KEY_A' is not <action>=<key>"),
        ({"joy_buttons": "jump=1"}, "parameter joy_buttons: 'jump=1' is not <action>=<button>"),
    ],
)
def test_a_wrong_pedal_or_button_is_refused_and_the_node_lives(rig, joint_spec, capfd, parameters, reason):
    pytest.importorskip("evdev", reason="needs the pedals extra")
    with pytest.raises(AssertionError):
        rig.recorder(joint_spec, **parameters)
    assert reason in capfd.readouterr().err
    assert not rig._nodes[-1].active


def test_lines_start_and_end_episodes_and_topics_are_remapped(rig, joint_spec):
    out = rig.tmp_path / "recordings"
    words = ["record", "--spec", rig.write(joint_spec), "--out", out, "--task", "Lift the operator's cube"]
    process = rig.program(*words, "--ros-args", "-r", "/joints:=/left/joints")

    def files(pattern: str) -> list[str]:
        assert process.runs()
        return sorted(str(path.relative_to(out)) for path in out.glob(pattern))

    with publishing(Robot(rig, "/left/joints").publish):
        # Refused while the streams are silent.
        until(repeating(lambda: process.say("start"), lambda: files("*.part")), "the first episode")
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
