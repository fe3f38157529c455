"""FusedFilter: fused frames as a filter of message_filters, on the topics that its other filters have."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("message_filters", reason="a package of ROS that is not on PyPI")
import rclpy
from geometry_msgs.msg import PoseStamped
from message_filters import ApproximateTimeSynchronizer, Cache, Subscriber, TimeSynchronizer
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, Float32MultiArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.filters import FusedFilter
from robocache_ros.nodes.frame_messages import read_fused
from test.nodes.rig import Rig, publishing, repeating, stamped, until

JOINTS = {"joints": {"topic": "/joints", "names": ["a", "b"]}}


class Driver:
    """Publishes joints and images, with the values of their time."""

    def __init__(self, rig: Rig) -> None:
        self._joints, self._images = rig.publisher(JointState, "/joints"), rig.publisher(Image, "/front")
        self._count, self.images = 0, True

    def publish(self) -> None:
        now_ns = time.time_ns()
        self._joints.publish(stamped(JointState(name=["b", "a"], position=[2.0, 1.0]), now_ns))
        self._count += 1
        if self.images and self._count % 5 == 0:
            image = Image(height=2, width=3, encoding="rgb8", step=9, data=bytes([200] * 18))
            self._images.publish(stamped(image, now_ns))


def sim_time_node(rig: Rig) -> Any:
    """A node of the rig that follows /clock."""
    node = rclpy.create_node("user", context=rig.context, parameter_overrides=[Parameter("use_sim_time", value=True)])
    rig._nodes.append(node)
    rig.executor.add_node(node)
    return node


@pytest.fixture
def driver(rig):
    driver = Driver(rig)
    with publishing(driver.publish, 0.005):
        yield driver


@pytest.fixture
def fused(rig):
    """Makes filters of the rig's node."""
    made: list[FusedFilter] = []

    def make(*arguments: Any, node: Any = rig.node, **options: Any) -> FusedFilter:
        made.append(FusedFilter(node, *arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_filters_are_fused_without_a_file(rig, driver, fused):
    inputs = [Subscriber(rig.node, Image, "/front"), Subscriber(rig.node, JointState, "/joints")]
    frames: list[Any] = []
    fused(inputs, rate_hz=20, horizon=3, streams=JOINTS).registerCallback(frames.append)
    until(lambda: frames and frames[-1].all_valid, "a frame with all streams")
    frame = frames[-1]
    assert frame["joints"].shape == (3, 2)
    assert frame["joints"][-1].tolist() == [1.0, 2.0]
    assert torch.equal(frame["front"], torch.full((3, 2, 3), 200, dtype=torch.float32) / 255)
    assert frame.tick_ns % (10**9 // 20) == 0
    assert frame.tick_age_ns >= frame.layout.spec.delay_ns


def test_callbacks_get_the_frame_and_their_arguments_in_the_order_of_registration(rig, driver, fused):
    calls: list[Any] = []
    made = fused([Subscriber(rig.node, JointState, "/joints")], streams=JOINTS)
    made.registerCallback(lambda frame, word, number: calls.append((frame.tick_ns, word, number)), "first", 1)
    made.registerCallback(lambda frame: calls.append(frame.tick_ns))
    until(lambda: sum(isinstance(call, int) for call in calls) >= 2, "two ticks")
    ticks = [call for call in calls if isinstance(call, int)][:2]
    first = calls.index((ticks[0], "first", 1))  # ticks before it had one callback
    assert calls[first : first + 4] == [(ticks[0], "first", 1), ticks[0], (ticks[1], "first", 1), ticks[1]]


def test_other_filters_read_the_time_of_a_frame(rig, driver, fused):
    made = fused([Subscriber(rig.node, JointState, "/joints")], streams=JOINTS)
    cache = Cache(made, 100)
    pairs: list[Any] = []
    TimeSynchronizer([made, made], 10).registerCallback(lambda one, other: pairs.append((one, other)))
    until(lambda: len(pairs) > 3, "pairs")
    one, other = pairs[0]
    assert one is other
    stamps = [stamp.nanoseconds for stamp in cache.cache_times[:3]]
    assert stamps == [frame.tick_ns for frame in cache.cache_msgs[:3]]
    assert np.diff(stamps).tolist() == [20_000_000] * 2


def test_a_topic_that_stops_is_marked_where_a_synchronizer_delivers_nothing(rig, driver, fused):
    inputs = [Subscriber(rig.node, Image, "/front"), Subscriber(rig.node, JointState, "/joints")]
    pairs: list[Any] = []
    frames: list[Any] = []
    ApproximateTimeSynchronizer(inputs, 10, 0.02).registerCallback(lambda *pair: pairs.append(pair))
    fused(inputs, streams=JOINTS).registerCallback(frames.append)
    until(lambda: pairs and frames and frames[-1].all_valid, "both")
    driver.images = False
    until(lambda: not frames[-1].all_valid, "a frame without an image")
    count, at = len(pairs), len(frames)
    until(lambda: len(frames) >= at + 10, "more frames")
    assert len(pairs) == count
    assert {int(frame.valid["front"][-1]) for frame in frames[at:]} == {0}
    assert {int(frame.valid["joints"][-1]) for frame in frames[at:]} <= {1, 2}


def test_a_spec_gives_the_bits_of_the_fusion_node(rig, joint_spec, fused):
    joint_spec["delay_ms"] = 200  # no sample arrives at the very deadline of a tick that uses it
    node = sim_time_node(rig)
    frames: dict[int, Any] = {}
    fused(joint_spec, node=node).registerCallback(lambda frame: frames.update({frame.tick_ns: frame}))
    rig.fusion(joint_spec, use_sim_time=True)
    assert rig.change_state("configure")
    assert rig.change_state("activate")
    rows = rig.listen(Float32MultiArray, "/fusion_node/fused")
    joints, command = rig.publisher(JointState, "/joints"), rig.publisher(Float32MultiArray, "/command")
    until(lambda: joints.get_subscription_count() == 2 and command.get_subscription_count() == 2, "subscriptions")
    clock = rig.clock()
    until(lambda: clock._publisher.get_subscription_count() >= 3, "the clocks of both")

    def step() -> None:
        clock.step()
        value = clock.now_ns / 1e9
        joints.publish(stamped(JointState(name=["b", "a"], position=[value**2, value]), clock.now_ns - 7_000_000))
        command.publish(Float32MultiArray(data=[value]))

    until(repeating(step, lambda: len(rows) > 20 and len(frames) > 20, 0.01), "ticks")

    compared = 0
    for message in rows.messages:
        tick_ns, window = read_fused(message)
        if tick_ns in frames:
            frame = frames[tick_ns]
            values = torch.cat([frame["joints"], frame["command"]], dim=1)
            assert torch.equal(values, window[:, :3])
            compared += bool(frame.all_valid)
    assert compared > 5


def test_a_spec_in_a_file_is_fused_until_the_filter_is_closed(rig, driver, joint_spec, fused):
    frames: list[Any] = []
    made = fused(rig.write(joint_spec))
    made.registerCallback(frames.append)
    until(lambda: frames and frames[-1].valid["joints"][-1] == 1, "aligned joints")
    made.close()
    count = len(frames)
    assert frames[-1]["joints"][-1].tolist() == [1.0, 2.0]
    assert made.counters["joints"]["accepted"] > 0
    until(lambda: rig.node.count_subscribers("/joints") == 0, "the end of its subscription")
    assert len(frames) <= count + 1  # one may have been on its way


def test_bytes_of_a_raw_subscriber_give_the_same_values(rig, driver, fused):
    inputs = [Subscriber(rig.node, JointState, "/joints", raw=True, qos_profile=QoSProfile(depth=10))]
    frames: list[Any] = []
    fused(inputs, streams=JOINTS).registerCallback(frames.append)
    until(lambda: frames and frames[-1].all_valid, "a valid frame")
    assert frames[-1]["joints"][-1].tolist() == [1.0, 2.0]


def test_streams_follow_from_types_that_say_them(rig, fused):
    inputs = [Subscriber(rig.node, kind, topic) for kind, topic in ((PoseStamped, "arm/pose"), (Bool, "/closed"))]
    spec = fused(inputs).spec
    assert [(s.name, s.topic, s.dim, s.align) for s in spec.streams] == [
        ("arm_pose_position", "/arm/pose", 3, "linear"),
        ("arm_pose_orientation", "/arm/pose", 4, "slerp"),
        ("closed", "/closed", 1, "hold"),
    ]


def test_sim_time_decides_the_ticks_of_filters(rig, fused):
    node = sim_time_node(rig)
    joints = rig.publisher(JointState, "/joints")
    frames: list[Any] = []
    fused([Subscriber(node, JointState, "/joints")], node=node, streams=JOINTS, delay_ms=20).registerCallback(
        frames.append
    )
    until(joints.get_subscription_count, "the subscription")
    clock = rig.clock()

    def step() -> None:
        joints.publish(stamped(JointState(name=["a", "b"], position=[1.0, 2.0]), clock.now_ns))
        clock.step()

    until(repeating(step, lambda: frames and frames[-1].all_valid, 0.01), "a valid frame")
    assert frames[-1].tick_ns <= clock.due_ns
    assert 0 <= frames[-1].tick_age_ns < 10**9


@pytest.mark.parametrize(
    ("streams", "options", "expected"),
    [
        ({}, {}, "/joints: sensor_msgs/msg/JointState does not say which values are meant; give streams={'joints'"),
        ({**JOINTS, "x": {"topic": "/x", "type": "std_msgs/msg/Bool"}}, {}, "streams.x: no filter has the topic /x"),
        (JOINTS, {"rate_hz": 0}, "rate_hz: 0 is"),
    ],
    ids=["joints without names", "no filter", "wrong key"],
)
def test_inputs_that_cannot_be_fused_are_refused(rig, fused, streams, options, expected):
    inputs = [Subscriber(rig.node, JointState, "/joints")]
    with pytest.raises(RoboCacheError) as refused:
        fused(inputs, streams=streams, **options)
    assert expected in str(refused.value)
    assert len(str(refused.value)) < 200


def test_keys_beside_a_spec_are_refused(rig, joint_spec, fused):
    with pytest.raises(RoboCacheError, match="rate_hz: given beside a spec; write them in the spec"):
        fused(joint_spec, rate_hz=20)


def test_a_busy_executor_gets_the_newest_frames(rig, driver, fused):
    made = fused([Subscriber(rig.node, JointState, "/joints")], 2, streams=JOINTS)
    blocked, go_on = threading.Event(), threading.Event()
    ticks: list[int] = []

    def slow(frame: Any) -> None:
        ticks.append(frame.tick_ns)
        blocked.set()
        go_on.wait(120)

    made.registerCallback(slow)
    assert blocked.wait(120)
    until(lambda: made.overtaken >= 3, "dropped frames")
    go_on.set()
    until(lambda: len(ticks) >= 3, "the frames after it")
    assert ticks == sorted(ticks)
    assert ticks[1] - ticks[0] > 40_000_000
