"""`FusedSubscriber` against a running node."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch

pytest.importorskip("rclpy")
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image, JointState, PointCloud2, PointField
from std_msgs.msg import Float32MultiArray

from robocache_ros import ops
from robocache_ros.client import FusedFrame, FusedSubscriber
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes import frame_messages
from robocache_ros.nodes import fused_subscriber as module
from robocache_ros.spec import load_spec
from test.nodes.rig import JOINT_SPEC, Rig, stamped, until


class Robot:
    """Publishes joints, an image and a cloud from a thread."""

    def __init__(self, rig: Rig) -> None:
        self._joints = rig.publisher(JointState, "/joints")
        self._image = rig.publisher(Image, "/camera")
        self._cloud = rig.publisher(PointCloud2, "/points")
        self._stopped = threading.Event()
        self.image = Image(height=2, width=2, encoding="rgb8", step=6, data=bytes(range(12)))
        fields = [PointField(name=n, offset=4 * i, datatype=7, count=1) for i, n in enumerate("xyz")]
        point = torch.tensor([0.25, 0.75, 0.25]).numpy().tobytes()
        self.cloud = PointCloud2(height=1, width=1, fields=fields, point_step=12, row_step=12, data=point)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.005):
            joints, now_ns = JointState(name=["a", "b"], position=[0.25, -0.5]), time.time_ns()
            self._joints.publish(stamped(joints, now_ns))
            self._image.publish(stamped(self.image, now_ns))
            self._cloud.publish(stamped(self.cloud, now_ns))

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


QOS = {"reliability": "reliable", "depth": 20}
GRID = {"origin_m": [0, 0, 0], "size_m": 0.5, "shape": [2, 2, 2]}
SPEC = JOINT_SPEC | {
    "streams": JOINT_SPEC["streams"]
    | {
        "camera": {
            "topic": "/camera", "type": "sensor_msgs/msg/Image", "image": {"size": [2, 2], "normalize": "imagenet"},
            "qos": QOS,
        },
        "grid": {"topic": "/points", "type": "sensor_msgs/msg/PointCloud2", "voxels": GRID, "qos": QOS},
    }
}  # fmt: skip


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with closing(Rig(tmp_path_factory.mktemp("rig"))) as rig:
        yield rig


@pytest.fixture(scope="module")
def robot(rig):
    """One robot, and an active node, for all tests of this file.

    The node has a process of its own: within a process, Fast DDS 3.2 may deliver no message to a reliable subscription
    that is matched while its publisher publishes.
    """
    rig.process(SPEC)
    robot = Robot(rig)
    yield robot
    robot.stop()


@pytest.fixture
def normalizing(rig, robot):
    """The node normalizes images."""

    def configure(normalized: bool) -> None:
        assert rig.change_state("deactivate")
        assert rig.change_state("cleanup")
        request = SetParameters.Request(parameters=[Parameter("normalized", value=normalized).to_parameter_msg()])
        assert rig.call(SetParameters, "/fusion_node/set_parameters", request).results[0].successful
        assert rig.change_state("configure")
        assert rig.change_state("activate")

    configure(True)
    yield
    configure(False)


def first_valid(subscriber: FusedSubscriber) -> FusedFrame:
    for frame in subscriber:
        if all(frame.valid[name][-1] for name in ("joints", "camera", "grid")):
            return frame
    raise AssertionError("the subscriber was closed")


def test_frame_has_the_window_of_each_vector_stream(robot):
    with FusedSubscriber() as subscriber:
        frame = first_valid(subscriber)

    assert frame["joints"].shape == (4, 2)
    assert frame["joints"][-1].tolist() == [0.25, -0.5]
    assert frame.ticks_ns[-1] == frame.tick_ns
    assert (frame.ticks_ns.diff() == 20_000_000).all()
    assert 0 <= frame.age_ns["joints"][-1] < load_spec(SPEC).stream("joints").max_age_ns  # a busy machine's may be old
    assert frame.valid["command"].tolist() == [0, 0, 0, 0]


PIXELS = torch.arange(12, dtype=torch.uint8).reshape(2, 2, 3).permute(2, 0, 1).contiguous()


@pytest.mark.parametrize("node_normalizes", [False, True])
def test_images_come_as_datasets_give_them_or_as_requested(robot, request, node_normalizes):
    if node_normalizes:
        request.getfixturevalue("normalizing")
    imagenet = load_spec(SPEC).stream("camera").image.normalize
    rounded = ops.normalize_image(PIXELS, imagenet, torch.bfloat16)
    expected: list[tuple[dict[str, Any], torch.Tensor]] = [
        ({}, PIXELS.to(torch.float32).div(255)),
        ({"dtype": torch.uint8}, PIXELS),
        ({"normalize": True}, ops.normalize_image(PIXELS, imagenet)),
        ({"normalize": True, "dtype": torch.bfloat16}, rounded),
        ({"normalize": True, "dtype": torch.bfloat16, "transport": "message"}, rounded),
    ]
    for options, image in expected:
        with FusedSubscriber(images=["camera"], **options) as subscriber:
            frame = first_valid(subscriber)
        assert frame["camera"].dtype == image.dtype
        assert torch.equal(frame["camera"], image)


@pytest.mark.parametrize("transport", ["auto", "compressed"])
def test_voxels_come_as_the_dense_grid_and_compressed_images_close_to_those_of_the_node(robot, transport):
    with FusedSubscriber(images=["camera", "grid"], transport=transport, dtype=torch.uint8) as subscriber:
        frame = first_valid(subscriber)

    assert transport == "auto" or not subscriber.shared
    assert frame["camera"].shape == PIXELS.shape
    assert (frame["camera"].int() - PIXELS.int()).abs().max() <= (transport == "compressed") * 4  # jpeg of quality 95
    expected = torch.zeros(2, 2, 2, dtype=torch.uint8)
    expected[0, 1, 0] = 1
    assert torch.equal(frame["grid"], expected)


def test_latest_waits_for_another_tick_and_counts_those_that_nobody_looked_at(robot):
    with FusedSubscriber() as subscriber:
        first = subscriber.latest(60.0)
        second = subscriber.latest(60.0, other_than_ns=first.tick_ns)
        until(lambda: subscriber.overtaken >= 5, "frames to be overtaken")

    assert second.tick_ns > first.tick_ns


def test_async_for_gives_each_newest_frame_once_until_the_subscriber_is_closed(robot):
    async def collect() -> list[int]:
        ticks: list[int] = []
        subscriber = FusedSubscriber()
        async for frame in subscriber:
            ticks.append(frame.tick_ns)
            if len(ticks) == 10:
                subscriber.close()
        return ticks

    ticks = asyncio.run(asyncio.wait_for(collect(), 60.0))

    assert len(ticks) == 10
    assert ticks == sorted(set(ticks))


def test_callback_gets_every_frame_also_after_an_error_in_it(robot):
    ticks: list[int] = []

    def fail(frame: FusedFrame) -> None:
        ticks.append(frame.tick_ns)
        raise KeyError("mine")

    with FusedSubscriber(callback=fail) as subscriber:
        until(lambda: len(ticks) >= 10, "frames")

    assert subscriber.overtaken == 0
    assert ticks == sorted(set(ticks))


def test_no_frame_comes_as_a_message_while_the_subscriber_is_closed(robot, monkeypatch):
    ticks: list[int] = []
    from_ring: list[int] = []
    others: list[int] = []

    def close(ring: Any, real: Callable[..., None] = module.RingFollower.close) -> None:
        real(ring)
        from_ring.extend(ticks)
        before = len(others)
        until(lambda: len(others) > before + 50, "more messages")

    with FusedSubscriber(transport="message", callback=lambda frame: others.append(frame.tick_ns)):
        subscriber = FusedSubscriber(callback=lambda frame: ticks.append(frame.tick_ns))
        until(lambda: subscriber.shared and ticks, "a frame")
        with monkeypatch.context() as patch:
            patch.setattr(module.RingFollower, "close", close)
            subscriber.close()

    assert ticks == from_ring


def test_foreign_messages_on_its_topics_are_ignored_and_do_not_end_the_frames(robot, rig):
    frames: list[FusedFrame] = []
    with FusedSubscriber(images=["camera"], transport="message", callback=frames.append):
        until(lambda: frames, "a frame")
        row = rig.node.create_publisher(Float32MultiArray, "/fusion_node/fused", QoSProfile(depth=5))
        image = rig.node.create_publisher(Image, "/fusion_node/camera/aligned", QoSProfile(depth=5))
        until(lambda: row.get_subscription_count() and image.get_subscription_count(), "the subscriber")
        row.publish(Float32MultiArray())
        image.publish(frame_messages.image_message(1, "", torch.zeros(3, 2, 2, dtype=torch.uint8)))
        before = len(frames)

        until(lambda: len(frames) > before + 5, "frames after the foreign messages")
    assert all(frame["camera"].any() for frame in frames if frame.valid["camera"][-1])


def test_subscriber_of_a_given_node_is_spun_by_its_owner(rig, robot):
    with FusedSubscriber(node=rig.node) as subscriber:
        until(subscriber.latest, "a frame")


def test_subscriber_of_a_given_node_adds_no_handlers_of_events(rig, robot):
    """An executor in another thread would not survive that one is destroyed as it collects what to wait for."""
    before = list(rig.node.waitables)
    with FusedSubscriber(node=rig.node, images=["camera"], transport="message") as subscriber:
        until(subscriber.latest, "a frame")
        assert list(rig.node.waitables) == before


@pytest.mark.parametrize("transport", ["auto", "message"])
def test_image_that_the_node_does_not_have_is_an_error_before_the_first_frame(robot, transport):
    with FusedSubscriber(images=["camera", "fornt"], transport=transport) as subscriber:
        with pytest.raises(
            RoboCacheError, match=r"images: fornt: fusion_node has no such .*; choose from camera, grid"
        ):
            next(iter(subscriber))
        with pytest.raises(RoboCacheError, match="images: fornt"):
            subscriber.latest()


@pytest.fixture
def reported(monkeypatch):
    """Lines about waiting come at once."""
    monkeypatch.setattr(module, "REPORT_S", 0.05)
    monkeypatch.setattr(module, "UNSPUN_S", 0.0)


def test_loop_without_a_node_says_what_it_waits_for_and_ends_at_its_limit(rig, reported, capfd):
    with (
        FusedSubscriber("nobody", timeout_s=0.5) as subscriber,
        pytest.raises(RoboCacheError, match=r"nobody: no new tick within 0\.5 s: no node publishes /nobody/fused"),
    ):
        for _ in subscriber:
            pass

    assert "waiting for /nobody: no node publishes /nobody/fused; start it" in capfd.readouterr().err


def test_async_loop_without_a_node_ends_at_its_limit(rig):
    async def loop() -> None:
        with FusedSubscriber("nobody", timeout_s=0.2) as subscriber:
            async for _ in subscriber:
                pass

    with pytest.raises(RoboCacheError, match="no new tick within"):
        asyncio.run(loop())


def test_latest_of_a_node_that_nobody_spins_warns_once(rig, reported, capfd):
    node = rig.stranger()
    with FusedSubscriber(node=node, transport="message") as subscriber:
        assert subscriber.latest() is None
        assert subscriber.latest() is None
        assert capfd.readouterr().err.count("nobody spins the node stranger; add it to an executor") == 1

    with FusedSubscriber(node=rig.node, transport="message") as spun:
        spun.latest(0.5)
    assert "nobody spins" not in capfd.readouterr().err


def test_layout_that_does_not_come_is_an_error(rig):
    with FusedSubscriber("nobody") as subscriber, pytest.raises(RoboCacheError, match="nobody/layout"):
        subscriber.wait_for_layout(0.1)


def test_policy_survives_a_node_that_is_configured_anew(rig, robot):
    with FusedSubscriber() as subscriber:
        assert subscriber.latest(60.0)
        for transition in ("deactivate", "cleanup", "configure", "activate"):
            assert rig.change_state(transition)
        restarted_ns = time.time_ns()

        until(lambda: subscriber.latest().tick_ns > restarted_ns, "ticks after the restart")
