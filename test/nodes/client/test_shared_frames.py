"""Frames read where the node keeps them, over real DDS and between real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("rclpy")
from sensor_msgs.msg import Image
from std_msgs.msg import Float32MultiArray, Float64MultiArray

from robocache_ros.client import FusedFrame, FusedSubscriber
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes.frame_messages import read_fused
from test import forked
from test.nodes.rig import until


@pytest.fixture(autouse=True)
def runtime(own_sockets):
    """Sockets in a folder of the test."""


@pytest.fixture
def spec():
    qos = {"reliability": "reliable", "depth": 20}
    image = {"size": [2, 2], "normalize": "imagenet"}
    return {
        "robocache": 1,
        "rate_hz": 50,
        "horizon": 3,
        "delay_ms": 10,
        "streams": {
            "command": {"topic": "/command", "type": "std_msgs/msg/Float64MultiArray", "dim": 2, "align": "hold",
                        "max_age_ms": 1000000, "qos": qos},
            "camera": {"topic": "/camera", "type": "sensor_msgs/msg/Image", "image": image, "max_age_ms": 1000000,
                       "stamp": "receive", "qos": qos},
        },
    }  # fmt: skip


@pytest.fixture
def publishers(rig):
    """Of commands and of images."""
    return rig.publisher(Float64MultiArray, "/command"), rig.publisher(Image, "/camera")


@pytest.fixture
def publish(publishers):
    """Publishes one command and one image, which are valid at every later tick."""
    command, camera = publishers

    def once() -> None:
        command.publish(Float64MultiArray(data=[1.5, -2.0]))
        camera.publish(Image(height=2, width=2, encoding="rgb8", step=6, data=bytes(range(12))))

    return once


@pytest.fixture
def send(publishers, publish):
    """Publishes them when the node has subscribed."""

    def once() -> None:
        until(lambda: all(publisher.get_subscription_count() for publisher in publishers), "the node's topics")
        publish()

    return once


@pytest.fixture
def node(rig, spec, send):
    """An active node that has received both, in a process of its own, as Fast DDS may lose a subscription in one."""
    rig.process(spec, diagnostics_period_s=0.1)
    send()


def valid_frame(subscriber: FusedSubscriber, *, shared: bool = True) -> FusedFrame:
    """A frame that has command and image, by the way it is to come."""
    for frame in subscriber:
        if subscriber.shared is shared and all(valid[-1] for valid in frame.valid.values()):
            return frame
    raise AssertionError("the subscriber was closed")


def test_shared_frames_are_those_of_the_messages_bit_for_bit(rig, node):
    kept: dict[str, dict[int, FusedFrame]] = {"auto": {}, "message": {}}

    def keep(transport: str) -> Callable[[FusedFrame], None]:
        def copy(frame: FusedFrame) -> None:
            clones = {name: value.clone() for name, value in frame.tensors.items()}
            rest = (frame.valid, frame.age_ns)
            kept[transport][frame.tick_ns] = FusedFrame(frame.tick_ns, frame.ticks_ns, clones, *rest)

        return copy

    with (
        FusedSubscriber(images=["camera"], callback=keep("auto")) as auto,
        FusedSubscriber(images=["camera"], callback=keep("message"), transport="message") as plain,
    ):
        valid_frame(auto)
        kept["auto"].clear()
        until(lambda: len(kept["auto"].keys() & kept["message"].keys()) > 5, "ticks of both")
        assert (auto.shared, plain.shared) == (True, False)

    for tick in kept["auto"].keys() & kept["message"].keys():
        shared, message = kept["auto"][tick], kept["message"][tick]
        assert torch.equal(shared.ticks_ns, message.ticks_ns)
        for name in ("command", "camera"):
            assert torch.equal(shared[name], message[name])
            assert torch.equal(shared.valid[name], message.valid[name])
            ages = [frame.age_ns[name].double().div(1e6).float() for frame in (shared, message)]
            assert torch.equal(*ages)  # a message has them as float32 of ms


def test_first_frame_of_a_restarted_policy_is_made_after_it_connected(rig, node):
    with FusedSubscriber() as first:
        valid_frame(first)
    until(lambda: rig.counts("ticks").get("ring_readers") == "0", "the node to see it go")
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    until(lambda: len(fused) > 10, "ticks without a reader")
    before_ns = read_fused(fused.newest)[0]
    ticks: list[int] = []

    with FusedSubscriber(callback=lambda frame: ticks.append(frame.tick_ns)) as restarted:
        until(lambda: len(ticks) > 2 and restarted.shared, "frames")

    assert ticks[0] >= before_ns
    assert restarted.missed <= (ticks[-1] - ticks[0]) // 20_000_000 + 1 - len(ticks)


def test_age_of_a_tick_is_that_of_the_wall_clock_at_each_look(node):
    with FusedSubscriber() as subscriber:
        frame = valid_frame(subscriber)
        before_ns = time.time_ns()
        now_ns = frame.tick_ns + frame.tick_age_ns

    assert before_ns <= now_ns <= time.time_ns()
    assert frame.tick_age_ns > now_ns - frame.tick_ns


@pytest.mark.parametrize("transport", ["auto", "message"])
def test_old_frame_is_not_the_latest_where_its_age_is_limited(rig, node, transport):
    with FusedSubscriber(transport=transport) as subscriber:
        assert subscriber.latest(60.0, max_age_ms=60_000)
        assert rig.change_state("deactivate")

        until(lambda: subscriber.latest(max_age_ms=100) is None, "the newest frame to be old")
        assert subscriber.latest() is not None


def test_loop_with_limits_raises_after_the_node_has_stopped(rig, node):
    with FusedSubscriber(max_age_ms=500, timeout_s=1.0) as subscriber:
        until(subscriber.latest, "a frame")
        assert rig.change_state("deactivate")
        until(lambda: subscriber.latest() is None, "the newest frame to be old")

        with pytest.raises(RoboCacheError, match=r"fusion_node: no new tick within 1 s: the node publishes no ticks"):
            next(iter(subscriber))


def test_topic_of_images_is_not_subscribed_to_while_frames_are_shared(rig, node):
    with FusedSubscriber(images=["camera"]) as subscriber:
        valid_frame(subscriber)

        until(lambda: rig.node.count_subscribers("/fusion_node/camera/aligned") == 0, "the subscription to go")


@pytest.mark.parametrize("ring_slots", [0, 4])
def test_node_without_a_ring_or_in_a_folder_that_others_may_enter_is_read_by_messages(rig, spec, send, ring_slots):
    if ring_slots:
        folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "robocache"
        folder.mkdir()
        folder.chmod(0o777)
    rig.fusion(spec, ring_slots=ring_slots).autostart()
    send()
    with FusedSubscriber(images=["camera"]) as subscriber:
        assert valid_frame(subscriber, shared=False)["command"][-1].tolist() == [1.5, -2.0]


def test_killed_and_restarted_node_is_found_again(rig, spec, send, publish):
    first = rig.process(spec)
    send()
    with FusedSubscriber(images=["camera"]) as subscriber:
        before = valid_frame(subscriber)
        first.popen.kill()
        first.popen.wait()
        until(lambda: not subscriber.shared, "the ring to be missed")
        rig.process(spec)
        rig.node.create_timer(0.1, publish)  # more than once: for a while the dead node counts as a subscriber still
        after = valid_frame(subscriber)

    assert after.tick_ns > before.tick_ns
    assert before["command"][-1].tolist() == [1.5, -2.0]  # the dead node's memory is still readable


CONSUMER = """
import sys, time
from robocache_ros.client import FusedSubscriber
with FusedSubscriber() as subscriber:
    for frame in subscriber:
        if subscriber.shared:
            kept = frame
            print("keeps", flush=True)
            time.sleep(600)
"""


@pytest.fixture
def consumer():
    """A consumer in a process of its own, which keeps the first frame that it gets."""
    process = forked.Popen([sys.executable, "-c", CONSUMER], preload=forked.NODE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_consumer_killed_while_it_keeps_a_frame_costs_the_node_nothing(rig, spec, send, consumer):
    rig.process(spec, ring_slots=2)
    send()
    assert consumer.stdout.readline() == "keeps\n"
    consumer.send_signal(signal.SIGKILL)
    consumer.wait()
    until(lambda: rig.counts("ticks").get("ring_readers") == "0", "the node to see it go")
    with FusedSubscriber() as subscriber:
        assert valid_frame(subscriber)["command"][-1].tolist() == [1.5, -2.0]


def test_transport_of_another_name_is_refused():
    with pytest.raises(RoboCacheError, match="transport: 'shm' is not one of auto, message"):
        FusedSubscriber(transport="shm")
