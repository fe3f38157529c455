"""Subscriptions: bytes taken through rcl or rclpy, the order of arrivals, floods, reliability, and /tf_static."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String, UInt8MultiArray

from robocache_ros.decode.transforms import read_transforms
from robocache_ros.engine.transforms import StaticTransforms
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes import middleware, subscriptions
from robocache_ros.nodes.subscriptions import SMALL_BYTES, Arrivals, RawSubscriber, ReceivedMessage
from robocache_ros.spec import TF_TYPE, load_spec
from test.nodes.rig import until

WAYS = pytest.mark.parametrize("direct", [True, False], ids=["direct", "rclpy"])


def message(nbytes: int, seed: int = 0) -> bytes:
    """A serialized message with random bytes."""
    data = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8).tobytes()
    return bytes(serialize_message(UInt8MultiArray(data=data)))


class RawTopic:
    """A topic, its publisher, and a subscription that no executor touches."""

    def __init__(self, rig: Any, topic: str = "/bytes") -> None:
        self.publisher = rig.publisher(UInt8MultiArray, topic)
        self.subscription = middleware.raw_subscription(rig.node, UInt8MultiArray, topic, QoSProfile(depth=100))
        until(self.publisher.get_subscription_count, "the subscription")

    def send(self, data: bytes) -> None:
        self.publisher.publish(data)

    def get(self, take: Callable[[Any], Any]) -> Any:
        """The first message that `take` returns."""
        return until(lambda: take(self.subscription), "a message")


@pytest.fixture
def raw_topic(rig):
    return RawTopic(rig)


@WAYS
@pytest.mark.parametrize("nbytes", [0, SMALL_BYTES - 20, 300_000])
def test_received_bytes_are_the_sent_bytes(raw_topic, direct, nbytes):
    subscriber = RawSubscriber(direct=direct)
    assert subscriber.direct == direct  # rcl is found on this machine
    assert subscriber.take(raw_topic.subscription) is None
    assert subscriber.take_into(raw_topic.subscription, np.zeros(10, np.uint8)) is None
    raw_topic.send(message(nbytes))
    received = raw_topic.get(subscriber.take)
    assert bytes(received.data) == message(nbytes)
    assert 0 < received.source_ns <= received.received_ns


@WAYS
def test_message_is_written_to_the_given_buffer(raw_topic, direct):
    buffer = np.zeros(5000, np.uint8)
    sent = message(3000)
    raw_topic.send(sent)
    received = raw_topic.get(lambda subscription: RawSubscriber(direct=direct).take_into(subscription, buffer))
    assert bytes(received.data) == sent
    assert memoryview(received.data).readonly
    assert (buffer[: len(sent)].tobytes() == sent) == direct  # rclpy's take allocates its own memory


@pytest.mark.parametrize("nbytes", [101, 5_000_000])
def test_message_larger_than_the_buffer_is_not_lost(raw_topic, nbytes):
    buffer = np.zeros(100, np.uint8)
    subscriber = RawSubscriber()
    for seed in range(3):
        raw_topic.send(message(nbytes, seed))
        received = raw_topic.get(lambda subscription: subscriber.take_into(subscription, buffer))
        assert bytes(received.data) == message(nbytes, seed)
    assert not buffer.any()


def test_received_bytes_stay_after_further_messages(raw_topic):
    sent = [message(nbytes, seed) for seed, nbytes in enumerate((50, 100_000, 50, 100_000))]
    subscriber, received = RawSubscriber(), []
    for data in sent:
        raw_topic.send(data)
        received.append(raw_topic.get(subscriber.take))
    assert [bytes(one.data) for one in received] == sent


def test_threads_take_from_topics_of_their_own(rig):
    topics = [RawTopic(rig, f"/bytes{number}") for number in range(3)]

    def run(topic: RawTopic) -> None:
        subscriber = RawSubscriber()
        for seed in range(10):
            sent = message(200_000, 10 * topics.index(topic) + seed)
            topic.send(sent)
            received = topic.get(lambda one: subscriber.take_into(one, np.zeros(300_000, np.uint8)))
            assert bytes(received.data) == sent

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, topics))  # raises what a thread raised


def test_failed_allocation_raises_and_the_next_message_arrives(raw_topic, monkeypatch):
    def no_memory(*_: Any) -> None:
        raise MemoryError

    subscriber = RawSubscriber()
    with monkeypatch.context() as patched:
        raw_topic.send(message(SMALL_BYTES))
        patched.setattr(subscriptions.np, "empty", no_memory)
        with pytest.raises(MemoryError, match="/bytes: no memory for a message"):
            raw_topic.get(subscriber.take)
    raw_topic.send(message(20))
    assert bytes(raw_topic.get(subscriber.take).data) == message(20)


def nowhere(name: str) -> None:
    raise OSError(name)


# Such an rcutils succeeds, and what it writes is not where it is read.
OTHER = SimpleNamespace(rcutils_uint8_array_init=lambda *_: 0, rcutils_uint8_array_resize=lambda *_: 0)


def other_rcutils(name: str, load: Callable[[str], Any] = ctypes.CDLL) -> Any:
    return OTHER if name == "librcutils.so" else load(name)


@pytest.mark.parametrize("load", [nowhere, other_rcutils], ids=["a missing library", "other structures of rcutils"])
def test_a_library_that_cannot_be_used_falls_back_to_rclpy(raw_topic, monkeypatch, load):
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", load)
        subscriptions.find_rcl_take.cache_clear()
        subscriber = RawSubscriber()
    subscriptions.find_rcl_take.cache_clear()
    assert RawSubscriber().direct
    raw_topic.send(message(20))
    assert not subscriber.direct
    assert bytes(raw_topic.get(subscriber.take).data) == message(20)


HOUR_NS = 3600 * 10**9


class Queue:
    """Messages of a topic by their times of reception, as many as are left."""

    def __init__(self, topic: Any, times: Sequence[int] | range) -> None:
        self._topic = topic
        self._times = iter(times)
        self.largest_read = 0

    def __call__(self, limit: int) -> list[tuple[Any, ReceivedMessage]]:
        found = [(self._topic, ReceivedMessage(b"", 0, time)) for time in islice(self._times, limit)]
        self.largest_read = max(self.largest_read, len(found))
        return found


def read(arrivals: Arrivals, limit_ns: int, grace_ns: int = HOUR_NS) -> list[tuple[int, Any]]:
    return [(arrival_ns, topic) for arrival_ns, topic, _ in arrivals.read(lambda: 0, limit_ns, grace_ns)]


def test_backlog_after_a_stall_is_read_in_order_across_queues():
    slow, fast, rare = range(5, 2005, 20), range(1, 2001, 2), [2, 1998]
    arrivals = Arrivals([Queue("slow", slow), Queue("fast", fast), Queue("rare", rare)])
    found = read(arrivals, HOUR_NS)
    expected = [*((t, "slow") for t in slow), *((t, "fast") for t in fast), *((t, "rare") for t in rare)]
    assert [time for time, _ in found] == sorted(time for time, _ in expected)
    assert sorted(found) == sorted(expected)
    assert not arrivals.flooded


def test_flooded_queue_does_not_keep_the_others_waiting():
    flood = Queue("flood", range(1, 10**9))
    arrivals = Arrivals([flood, Queue("joints", [500_000, 500_001])])
    found = read(arrivals, limit_ns=-1)  # time for one message
    assert found == [(1, "flood"), (500_000, "joints"), (500_001, "joints")]
    assert arrivals.flooded
    assert flood.largest_read == subscriptions.ARRIVALS_BATCH


def test_two_flooded_queues_get_the_same_share():
    arrivals = Arrivals([Queue("a", range(1, 10**9)), Queue("b", range(1, 10**9))])
    topics = [topic for _ in range(100) for _, topic in read(arrivals, limit_ns=-1)]
    assert abs(topics.count("a") - topics.count("b")) <= 1


def test_messages_left_by_a_step_are_the_first_of_the_next():
    arrivals = Arrivals([Queue("a", [1, 2, 3]), Queue("b", [])])
    assert [read(arrivals, limit_ns=-1, grace_ns=-1) for _ in range(4)] == [[(1, "a")], [(2, "a")], [(3, "a")], []]
    assert not arrivals.flooded


def test_message_of_a_tick_that_is_made_arrives_after_it_and_one_without_a_time_when_it_is_read():
    arrivals = Arrivals([Queue("a", [1, 70])])
    assert [arrival_ns for arrival_ns, _, _ in arrivals.read(lambda: 51, HOUR_NS, 0)] == [51, 70]
    ((arrival_ns, _),) = read(Arrivals([Queue("a", [0])]), HOUR_NS)
    assert arrival_ns > 10**18


STEP_NS = 4_000_000


@pytest.fixture
def after(monkeypatch):
    """Counts steps, 4 ms apart; returns whether the flood is active after them."""
    now_ns = [0]
    monkeypatch.setattr(subscriptions.time, "monotonic_ns", lambda: now_ns[0])

    def count(state: subscriptions.Flood, limited: Iterable[bool]) -> bool:
        for reached in limited:
            state.add(reached)
            now_ns[0] += STEP_NS
        return state.active

    return count


def steps(seconds: float, every: int) -> list[bool]:
    """Steps of a time, of which one in `every` reaches its limit."""
    return [number % every == 0 for number in range(round(seconds * subscriptions.FLOOD_WINDOW_NS / STEP_NS))]


@pytest.mark.parametrize(
    ("before", "limited", "active"),
    [
        ([False] * 10, [False], False),
        ([False] * 10, [True], True),
        ([], steps(10, every=1), True),
        ([], steps(10, every=3), True),
        ([True], steps(1.01, every=8), False),  # large images: two at 30 Hz still reach the short limit
        (steps(3, every=1), [False] * (2 * subscriptions.FLOOD_WINDOW_NS // STEP_NS), False),
    ],
    ids=["no limit is reached", "one is", "while they are", "with pauses", "large images only", "messages end"],
)
def test_a_flood_begins_and_ends_with_the_limits_that_are_reached(after, before, limited, active):
    state = subscriptions.Flood()
    after(state, before)
    assert after(state, limited) is active


CAMERAS = {name: {"topic": f"/{name}", "type": "sensor_msgs/msg/Image"} for name in ("front", "rear")}
JOINTS = {"topic": "/joints", "type": "sensor_msgs/msg/JointState", "names": ["a"]}
SPEC = load_spec({"robocache": 1, "streams": {**CAMERAS, "joints": JOINTS}})


def test_images_are_requested_as_their_known_publishers_offer_them(rig):
    rig.publisher(Image, "/front")
    rig.publisher(Image, "/rear", reliability=ReliabilityPolicy.BEST_EFFORT)
    rig.publisher(JointState, "/joints")
    until(lambda: all(rig.node.get_publishers_info_by_topic(t) for t in ("/front", "/rear", "/joints")), "publishers")
    topics = subscriptions.TopicSubscriptions(rig.node, SPEC, SimpleNamespace())
    assert {topic.name: topic.qos.reliability for topic in topics.topics} == {
        "/front": "reliable",
        "/rear": "best_effort",
        "/joints": "best_effort",  # small messages are not lost, and it receives publishers of both kinds
    }
    topics.destroy()


def test_topic_is_received_after_its_subscription_was_replaced(rig):
    topics = subscriptions.TopicSubscriptions(rig.node, SPEC, SimpleNamespace())
    large = subscriptions.LargeMessages(rig.node, topics, lambda error: pytest.fail(repr(error)))
    front = next(topic for topic in topics.topics if topic.name == "/front")
    assert front.qos.reliability == "best_effort"

    def requested() -> list[str]:
        return [info.qos_profile.reliability.name for info in rig.node.get_subscriptions_info_by_topic("/front")]

    front.wanted = replace(front.qos, reliability="reliable")
    until(lambda: requested() == ["RELIABLE"], "the subscription")
    publisher = rig.publisher(Image, "/front")
    until(publisher.get_subscription_count, "the match")
    publisher.publish(Image(height=1, width=1, encoding="mono8", step=1, data=b"\x07"))

    (received,) = until(lambda: large.read(1), "the image")
    assert received[0] is front
    large.destroy()
    topics.destroy()


GRID = {"origin_m": [-1, -1, 0], "size_m": 0.1, "shape": [20, 20, 20], "frame": "base_link"}
SCAN = {"robocache": 1, "streams": {"scan": {"topic": "/scan", "type": "sensor_msgs/msg/PointCloud2", "voxels": GRID}}}
POSES = [
    ("base_link", "mast", (0.1, -0.2, 2.1), (0.0, 0.0, 0.6, 0.8)),
    ("mast", "optical", (0.05, 0.0, 0.3), (0.48, -0.6, 0.0, 0.64)),
]


@pytest.mark.usefixtures("tf_as_bytes")
def test_latched_transforms_give_the_bits_of_a_recording(rig, tf_message):
    data = [tf_message((0, *pose)) for pose in POSES]
    profile = middleware.latched(subscriptions.TF_STATIC_DEPTH)
    publishers = []  # of a node each, as robots have them; and before the fusion node listens
    for one in data:
        publishers.append(rig.stranger().create_publisher(String, "/tf_static", profile))
        publishers[-1].publish(one)
    node = rig.fusion(SCAN)
    node.autostart()
    known = node.parts.ingest.transforms
    live = until(lambda: known.lookup("base_link", "optical"), "the transforms")
    recorded = StaticTransforms()
    for one in reversed(data):
        for transform in read_transforms(one):
            recorded.add(transform)
    assert live == recorded.lookup("base_link", "optical")


POSE = {"robocache": 1, "streams": {"ee": {"topic": "/tf", "type": TF_TYPE, "frames": ["base", "tool"]}}}


@pytest.mark.parametrize(
    ("spec", "where", "way_out"),
    [
        (SCAN, r"streams\.scan\.voxels\.frame", r"install it, or give voxels\.extrinsic"),
        (POSE, r"streams\.ee\.type", "install it$"),
    ],
)
def test_without_tf2_msgs_there_is_one_clear_error(rig, monkeypatch, spec, where, way_out):
    monkeypatch.setattr(middleware, "load_message_class", lambda _name: None)
    with pytest.raises(RoboCacheError, match=f"{where}: /tf_static needs the package tf2_msgs, .* {way_out}"):
        subscriptions.subscribe_static_transforms(rig.node, load_spec(spec), None)
