"""`FusedSubscriber` against a running node; its images against those that a dataset gives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image, JointState, PointCloud2, PointField
from std_msgs.msg import Float32MultiArray

from robocache_ros import ops
from robocache_ros.client import FusedFrame, FusedSubscriber
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes import frame_messages
from robocache_ros.nodes import fused_subscriber as module
from robocache_ros.nodes.fused_subscriber import AWAITED, Assembly, ImageConverter
from robocache_ros.spec import StreamSpec, load_spec
from test.nodes.rig import JOINT_SPEC, Rig, publishing, stamped, until

QOS = {"reliability": "reliable", "depth": 20}
GRID = {"origin_m": [0, 0, 0], "size_m": 0.5, "shape": [2, 2, 2]}
IMAGE = {"size": [2, 2], "normalize": "imagenet"}
MEDIA = {
    "camera": {"topic": "/camera", "type": "sensor_msgs/msg/Image", "image": IMAGE, "qos": QOS},
    "grid": {"topic": "/points", "type": "sensor_msgs/msg/PointCloud2", "voxels": GRID, "qos": QOS},
}
SPEC = JOINT_SPEC | {"streams": JOINT_SPEC["streams"] | MEDIA}


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with closing(Rig(tmp_path_factory.mktemp("rig"))) as rig:
        yield rig


@pytest.fixture(scope="module")
def robot(rig):
    """Joints, an image and a cloud that a thread publishes, and an active node, for all tests of this file.

    The node has a process of its own: within a process, Fast DDS 3.2 may deliver no message to a reliable subscription
    that is matched while its publisher publishes.
    """
    rig.process(SPEC)
    fields = [PointField(name=n, offset=4 * i, datatype=7, count=1) for i, n in enumerate("xyz")]
    point = torch.tensor([0.25, 0.75, 0.25]).numpy().tobytes()
    sent = {
        "/joints": JointState(name=["a", "b"], position=[0.25, -0.5]),
        "/camera": Image(height=2, width=2, encoding="rgb8", step=6, data=bytes(range(12))),
        "/points": PointCloud2(height=1, width=1, fields=fields, point_step=12, row_step=12, data=point),
    }
    publishers = [(rig.publisher(type(message), topic), message) for topic, message in sent.items()]

    def publish() -> None:
        now_ns = time.time_ns()
        for publisher, message in publishers:
            publisher.publish(stamped(message, now_ns))

    with publishing(publish, 0.005):
        yield


@pytest.fixture
def normalizing(rig, robot):
    """The node normalizes images."""

    def configure(normalized: bool) -> None:
        assert rig.change_state("deactivate")
        assert rig.change_state("cleanup")
        assert rig.set_parameters({"normalized": normalized})[0].successful
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


def test_subscriber_of_a_given_node_adds_no_handlers_of_events(rig, robot):
    """An executor in another thread would not survive that one is destroyed as it collects what to wait for."""
    before = list(rig.node.waitables)
    with FusedSubscriber(node=rig.node, images=["camera"], transport="message") as subscriber:
        until(subscriber.latest, "a frame")
        assert list(rig.node.waitables) == before


@pytest.mark.parametrize("transport", ["auto", "message"])
def test_image_that_the_node_does_not_have_is_an_error_before_the_first_frame(robot, transport):
    why = r"images: fornt: fusion_node has no such .*; choose from camera, grid"
    with FusedSubscriber(images=["camera", "fornt"], transport=transport) as subscriber:
        with pytest.raises(RoboCacheError, match=why):
            next(iter(subscriber))
        with pytest.raises(RoboCacheError, match="images: fornt"):
            subscriber.latest()


@pytest.fixture
def reported(monkeypatch):
    """Lines about waiting come at once."""
    monkeypatch.setattr(module, "REPORT_S", 0.05)
    monkeypatch.setattr(module, "UNSPUN_S", 0.0)


def test_loop_without_a_node_says_what_it_waits_for_and_ends_at_its_limit(rig, reported, capfd):
    why = r"nobody: no new tick within 0\.5 s: no node publishes /nobody/fused"
    with FusedSubscriber("nobody", timeout_s=0.5) as subscriber, pytest.raises(RoboCacheError, match=why):
        next(iter(subscriber))
    assert "waiting for /nobody: no node publishes /nobody/fused; start it" in capfd.readouterr().err


def test_async_loop_without_a_node_ends_at_its_limit(rig):
    async def first() -> None:
        with FusedSubscriber("nobody", timeout_s=0.2) as subscriber:
            await anext(aiter(subscriber))

    with pytest.raises(RoboCacheError, match="no new tick within"):
        asyncio.run(first())


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


VALUES = torch.arange(256, dtype=torch.uint8).repeat(3, 1).reshape(3, 16, 16)
SHARES = VALUES.to(torch.float32).div(255)  # as torchvision's ToTensor, with which LeRobotDataset reads images
DEPTH = torch.full((1, 2, 2), 1234.5)
UINT8: dict[str, Any] = {"dtype": torch.uint8}


def stream(normalize: str | None = None) -> StreamSpec:
    front = {"topic": "/front", "type": "sensor_msgs/msg/Image", "image": {"normalize": normalize} if normalize else {}}
    return load_spec({"robocache": 1, "streams": {"front": front}}).stream("front")


@pytest.mark.parametrize("normalize", ["imagenet", None])
@pytest.mark.parametrize("node_normalizes", [False, True])
def test_pixels_and_depth_are_those_of_the_dataset_and_normalized_on_request(normalize, node_normalizes):
    spec, normalized = stream(normalize), ops.normalize_image(VALUES, normalize)
    image = normalized if node_normalizes else VALUES
    assert torch.equal(ImageConverter()(spec, image), SHARES)
    assert torch.equal(ImageConverter(normalize=True)(spec, image), normalized if normalize else SHARES)
    assert torch.equal(ImageConverter(**UINT8)(spec, image), VALUES)
    assert node_normalizes or ImageConverter(**UINT8)(spec, image) is VALUES  # not copied
    for options in ({}, UINT8):
        assert torch.equal(ImageConverter(**options)(spec, DEPTH), DEPTH)


def test_image_of_unknown_size_is_empty():
    assert ImageConverter(torch.float16)(stream(), None).dtype == torch.float16


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": torch.int32}, r"dtype: torch\.int32 is not one of"),
        ({**UINT8, "normalize": True}, "normalize: normalised images are not uint8"),
    ],
)
def test_other_values_are_refused(options, words):
    with pytest.raises(RoboCacheError, match=words):
        ImageConverter(**options)


Event = tuple[str, int]
LATER = range(100, 100 + AWAITED)


def window(tick_ns: int, valid: int = 1) -> FusedFrame:
    ticks_ns, tensors = torch.tensor([tick_ns]), {"joints": torch.zeros(1, 2)}
    return FusedFrame(tick_ns, ticks_ns, tensors, {"front": torch.tensor([valid])}, {})


def windows(*ticks: int) -> list[Event]:
    return [("window", tick) for tick in ticks]


def both(*ticks: int) -> list[Event]:
    return [(kind, tick) for tick in ticks for kind in ("image", "window")]


@pytest.mark.parametrize(
    ("events", "complete", "incomplete"),
    [
        pytest.param([("window", 1), ("image", 1)], [1], 0, id="a frame waits for its image"),
        pytest.param([("image", 1), ("window", 1)], [1], 0, id="an image waits for its window"),
        pytest.param([("invalid", 1)], [1], 0, id="an invalid image is not waited for"),
        pytest.param([*windows(1, 2, 3), ("image", 2)], [2], 1, id="a newer frame that is complete"),
        pytest.param([*windows(1, 2, 3), ("image", 2), ("image", 3)], [2, 3], 1, id="those after it"),
        pytest.param(windows(*range(AWAITED + 3)), [], 3, id="no more than are awaited"),
        pytest.param([*both(*LATER), *both(1, 2, 3)], [*LATER, 1, 2, 3], 0, id="the clock jumps back"),
        pytest.param([("window", 100), ("image", 100), ("image", 1), ("window", 1)], [100, 1], 0, id="image at a jump"),
        pytest.param([*both(1, 2, 3), ("window", 2)], [1, 2, 3], 0, id="an image of before a jump"),
        pytest.param([*both(1, 2, 3), ("window", 2), ("image", 2)], [1, 2, 3, 2], 0, id="an image of after a jump"),
        pytest.param(windows(100, 101, 1), [], 2, id="frames that wait at a jump"),
    ],
)
def test_frames_are_complete_with_the_image_of_their_tick(events, complete, incomplete):
    assembly, frames = Assembly(["front"]), []
    for number, (kind, tick) in enumerate(events):
        if kind == "image":
            frames += assembly.add_image("front", tick, torch.full((3,), number))
        else:
            frames += assembly.add_window(window(tick, valid=int(kind == "window")))
    assert ([frame.tick_ns for frame in frames], assembly.incomplete) == (complete, incomplete)
    if frames and events[-1][0] != "invalid":  # each has the newest image of its tick
        numbers = [number for number, event in enumerate(events) if event == ("image", frames[-1].tick_ns)]
        assert frames[-1].tensors["front"].tolist() == [numbers[-1]] * 3
    else:
        assert not any("front" in frame.tensors for frame in frames)


def test_an_image_of_a_stream_that_the_node_does_not_have_is_not_waited_for():
    assert [frame.tick_ns for frame in Assembly(["side"]).add_window(window(1))] == [1]
