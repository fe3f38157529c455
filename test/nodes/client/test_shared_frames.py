"""Frames where the node keeps them: over real DDS, between real processes, under a sim time that jumps; lost rings."""

from __future__ import annotations

import itertools
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rclpy.executors import MultiThreadedExecutor
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float32MultiArray, Float64MultiArray

from robocache_ros import ipc
from robocache_ros.client import FusedFrame, FusedSubscriber
from robocache_ros.engine import Frames
from robocache_ros.errors import RoboCacheError
from robocache_ros.ipc.frame_ring import FrameWriter
from robocache_ros.nodes.frame_messages import read_fused
from robocache_ros.nodes.fused_subscriber import RingFollower
from robocache_ros.nodes.publishers import RingOutput
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout
from test import forked
from test.nodes.rig import clock_cdr, repeating, stamped, until

pytestmark = pytest.mark.usefixtures("own_sockets")

S = 1_000_000_000
SHARED = pytest.mark.parametrize(("transport", "shared"), [("auto", True), ("message", False)])


@pytest.fixture
def spec():
    qos = {"reliability": "reliable", "depth": 20}
    kept = {"max_age_ms": 1000000, "qos": qos}
    command = {"topic": "/command", "type": "std_msgs/msg/Float64MultiArray", "dim": 2, "align": "hold", **kept}
    image = {"size": [2, 2], "normalize": "imagenet"}
    camera = {"topic": "/camera", "type": "sensor_msgs/msg/Image", "image": image, "stamp": "receive", **kept}
    streams = {"command": command, "camera": camera}
    return {"robocache": 1, "rate_hz": 50, "horizon": 3, "delay_ms": 10, "streams": streams}


@pytest.fixture
def send(rig):
    """Publishes a command and an image, valid at every later tick; as a rule when the node has subscribed."""
    command, camera = rig.publisher(Float64MultiArray, "/command"), rig.publisher(Image, "/camera")

    def once(waits: bool = True) -> None:
        if waits:
            until(lambda: command.get_subscription_count() and camera.get_subscription_count(), "the node's topics")
        command.publish(Float64MultiArray(data=[1.5, -2.0]))
        camera.publish(Image(height=2, width=2, encoding="rgb8", step=6, data=bytes(range(12))))

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
    kept: tuple[dict[int, FusedFrame], dict[int, FusedFrame]] = ({}, {})

    def keep(frame: FusedFrame, there: dict[int, FusedFrame]) -> None:
        clones = {name: value.clone() for name, value in frame.tensors.items()}
        there[frame.tick_ns] = FusedFrame(frame.tick_ns, frame.ticks_ns, clones, frame.valid, frame.age_ns)

    with (
        FusedSubscriber(images=["camera"], callback=partial(keep, there=kept[0])) as auto,
        FusedSubscriber(images=["camera"], callback=partial(keep, there=kept[1]), transport="message") as plain,
    ):
        valid_frame(auto)
        kept[0].clear()
        until(lambda: len(kept[0].keys() & kept[1].keys()) > 5, "ticks of both")
        assert (auto.shared, plain.shared) == (True, False)

    for tick in kept[0].keys() & kept[1].keys():
        shared, message = kept[0][tick], kept[1][tick]
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
def test_node_without_a_ring_or_in_a_folder_of_others_is_read_by_messages(rig, spec, send, own_sockets, ring_slots):
    if ring_slots:
        own_sockets.joinpath("robocache").mkdir()
        own_sockets.joinpath("robocache").chmod(0o777)
    rig.fusion(spec, ring_slots=ring_slots).autostart()
    send()
    with FusedSubscriber(images=["camera"]) as subscriber:
        assert valid_frame(subscriber, shared=False)["command"][-1].tolist() == [1.5, -2.0]


def test_killed_and_restarted_node_is_found_again(rig, spec, send):
    first = rig.process(spec)
    send()
    with FusedSubscriber(images=["camera"]) as subscriber:
        before = valid_frame(subscriber)
        first.popen.kill()
        first.popen.wait()
        until(lambda: not subscriber.shared, "the ring to be missed")
        rig.process(spec)
        # More than once: for a while the dead node counts as a subscriber still.
        rig.node.create_timer(0.1, lambda: send(waits=False))
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


NODE: Any = SimpleNamespace(get_fully_qualified_name=lambda: "/fusion_node")
JOINTS = {"topic": "/joints", "type": "std_msgs/msg/Float64MultiArray", "dim": 2}
LAYOUT = Layout(load_spec({"robocache": 1, "rate_hz": 50, "streams": {"joints": JOINTS}}))


def frames(tick: int) -> Frames:
    valid, age_ns = np.ones((1, 1), np.uint8), np.zeros((1, 1), int)
    return Frames(np.array([tick * 20_000_000]), torch.full((1, 2), 0.5), valid, age_ns, {})


@pytest.fixture
def path(own_sockets):
    return ipc.socket_path("/fusion_node")


def test_ring_that_could_not_be_made_is_made_later(path, caplog):
    path.mkdir()
    with closing(RingOutput(NODE, LAYOUT, torch.device("cpu"), 4, retry_s=0.0)) as output:
        for tick in (1, 2, 3):
            output.fill(frames(tick), frames(tick).rows())
            output.announce()
        with pytest.raises(ipc.IpcUnavailableError):
            ipc.Reader(path)
        path.rmdir()
        output.fill(frames(4), frames(4).rows())

        with ipc.Reader(path) as reader:
            output.fill(frames(5), frames(5).rows())
            output.announce()
            lease = reader.latest()
    assert lease.tick_ns == 100_000_000
    assert caplog.text.count("frames are published as messages only") == 1


def test_ring_that_cannot_be_read_leaves_the_messages(path):
    reports: list[str] = []
    fields = [ipc.Field("window", "float32", (1, 1))]
    with (
        closing(ipc.Writer(path, fields, meta="not JSON")),
        closing(RingFollower("/fusion_node", lambda frame, layout: None, lambda *_: None, reports.append)) as follower,
    ):
        until(lambda: reports, "a report")
        assert "frames come as messages: the ring cannot be read" in reports[0]
        assert not follower.connected


def test_follower_reads_a_ring_that_appears(path, caplog):
    caplog.set_level(logging.INFO)
    given: list[FusedFrame] = []
    reports: list[str] = []
    ring = RingFollower("/fusion_node", lambda frame, layout: given.append(frame), lambda *_: None, reports.append)
    with closing(ring) as follower:
        until(lambda: reports, "a report of no ring")
        with closing(FrameWriter(path, LAYOUT)) as writer:
            writer.publish(frames(1), frames(1).rows())
            until(lambda: follower.connected, "the ring")
            writer.publish(frames(2), frames(2).rows())
            until(lambda: given, "a frame")
    assert given[0].tick_ns == 40_000_000
    expected = ["frames come as messages", "frames come from shared memory"]
    assert [text.partition(":")[0] for text in reports[:2]] == expected


class Simulation:
    """Publishes joints, images and /clock to an active node."""

    def __init__(self, rig: Any) -> None:
        topics = {"/clock": Clock, "/joints": JointState, "/camera": Image}
        publishers = [rig.publisher(kind, topic) for topic, kind in topics.items()]
        self._clock, self._joints, self._camera = publishers
        until(lambda: all(publisher.get_subscription_count() for publisher in publishers), "the node")
        self.now_ns = 0

    def tell_time(self) -> None:
        self._clock.publish(clock_cdr(self.now_ns))

    def run(self, first_ns: int, condition: Callable[[], Any], what: str) -> None:
        """Simulate from a time on, until a condition is true: subscribers may be found late, and lose messages."""
        self.now_ns = first_ns

        def step() -> Any:
            self.now_ns += 10_000_000
            self.tell_time()
            state = JointState(name=["a", "b"], position=[self.now_ns / S, 0.0])
            image = Image(height=2, width=2, encoding="rgb8", step=6, data=bytes(range(12)))
            self._joints.publish(stamped(state, self.now_ns))
            self._camera.publish(stamped(image, self.now_ns))
            return condition()

        until(step, what)


@pytest.fixture
def simulation(rig, joint_spec):
    qos = {"reliability": "reliable", "depth": 20}
    joint_spec["streams"]["camera"] = {
        "topic": "/camera", "type": "sensor_msgs/msg/Image", "image": {"size": [2, 2]}, "qos": qos,
    }  # fmt: skip
    rig.fusion(joint_spec, use_sim_time=True).autostart()
    return Simulation(rig)


@SHARED
def test_frames_go_on_after_the_clock_has_jumped_back(simulation, transport, shared):
    frames: list[tuple[int, bool]] = []

    def keep(frame: FusedFrame) -> None:
        frames.append((frame.tick_ns, bool(frame["camera"].any())))

    with FusedSubscriber(images=["camera"], transport=transport, callback=keep) as subscriber:
        subscriber.wait_for_layout(60.0)
        later_ns = 3600 * S
        simulation.run(later_ns, lambda: frames and subscriber.shared is shared, "frames before the jump")
        simulation.run(2 * S, lambda: any(image for tick_ns, image in [*frames] if tick_ns < later_ns), "frames after")


@SHARED
def test_age_of_a_tick_is_that_of_sim_time(simulation, transport, shared):
    with FusedSubscriber(transport=transport) as subscriber:
        subscriber.wait_for_layout(60.0)
        simulation.run(5 * S, lambda: subscriber.latest() and subscriber.shared is shared, "the first frames")

        def at_end() -> bool:
            frame = subscriber.latest()
            return frame is not None and frame.tick_ns + frame.tick_age_ns == simulation.now_ns

        until(repeating(simulation.tell_time, at_end), "a tick whose age is counted to the end of the clock")
        assert subscriber.latest(max_age_ms=60_000) is not None


@pytest.fixture
def busy_node(rig):
    """A node in a MultiThreadedExecutor, with a callback that occupies its callback group until the test ends."""
    done = threading.Event()
    node = rig.stranger()
    executor = MultiThreadedExecutor(num_threads=4, context=node.context)
    executor.add_node(node)

    def occupy() -> None:
        timer.cancel()  # or the executor, which finds it due, never sleeps
        done.wait()

    timer = node.create_timer(0.001, occupy)

    def spin() -> None:
        # Not executor.spin(): where shutdown() meets the executor as it collects what to wait for, it waits for ever.
        while not done.is_set():
            executor.spin_once(0.1)

    spinner = threading.Thread(target=spin)
    spinner.start()
    yield node
    done.set()
    spinner.join()
    executor.shutdown()


@SHARED
def test_busy_callbacks_of_the_given_node_lose_no_frame(rig, joint_spec, busy_node, transport, shared):
    rig.fusion(joint_spec, use_sim_time=True).autostart()
    clock = rig.clock()
    ticks: list[int] = []
    handlers = list(busy_node.waitables)
    given = {"node": busy_node, "transport": transport, "callback": lambda frame: ticks.append(frame.tick_ns)}
    with FusedSubscriber(**given) as ours:
        ours.wait_for_layout(60.0)
        connected_ns = 0

        def connected() -> bool:
            # A tick of the moment at which the frames change from messages to shared memory may come by neither way:
            # so the clock goes on, until a tick has come that was due after that moment.
            nonlocal connected_ns
            if not connected_ns and ours.shared is shared:
                connected_ns = clock.now_ns
            clock.step()
            return bool(connected_ns and ticks and ticks[-1] >= connected_ns)

        until(connected, "a frame since the connection")
        clock.until(lambda: ticks[-1] == clock.due_ns, "the newest frame")
        before, missed = len(ticks), ours.missed
        for _ in range(20):
            clock.step()
            clock.until(lambda: ticks[-1] == clock.due_ns, "the next frame")
        assert list(busy_node.waitables) == handlers  # none that is destroyed while the executor collects them

    assert ours.missed == missed
    assert [b - a for a, b in itertools.pairwise(ticks[before - 1 :])] == [20_000_000] * 20
