"""Receives the messages of the ingest measurement in one of several ways, in a separate process."""

from __future__ import annotations

import itertools
import json
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import rclpy
from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy

from robocache_ros.bench.load import Load
from robocache_ros.bench.processes import GO, STOP, await_command, percentiles, say_ready
from robocache_ros.bench.publisher import message_class
from robocache_ros.engine import FusionEngine, Ingest
from robocache_ros.nodes import middleware, process
from robocache_ros.nodes.subscriptions import RawSubscriber, TopicSubscriptions, definitions
from robocache_ros.nodes.tick_loop import WallClockSource
from robocache_ros.spec import load_spec

STAMP = struct.Struct("<iI")
LOAD = Load(cameras=2, width=640, height=480, cloud_hz=0)
PERIOD_NS = 20_000_000


class Received:
    """The latency of each message and the time of each timer callback."""

    def __init__(self) -> None:
        self.latency_ns: list[int] = []
        self.timer_ns: list[int] = []
        self.push_ns: dict[bool, list[int]] = {False: [], True: []}  # by whether it is an image

    def serialized(self, data: bytes | memoryview) -> None:
        """Count a message by its bytes."""
        seconds, nanoseconds = STAMP.unpack_from(data, 4)
        self.latency_ns.append(time.time_ns() - seconds * 1_000_000_000 - nanoseconds)

    def typed(self, message: Any) -> None:
        """Count a message by its header."""
        stamp = message.header.stamp
        self.latency_ns.append(time.time_ns() - stamp.sec * 1_000_000_000 - stamp.nanosec)

    def on_timer(self) -> None:
        """Note the time of a timer callback."""
        self.timer_ns.append(time.monotonic_ns())


def subscribe(node: Node, callback: Callable[[Any], None], *, raw: bool, own: bool = False) -> list[Any]:
    """A best-effort subscription for each sensor."""
    subscriptions = []
    for sensor in LOAD.sensors:
        qos = QoSProfile(depth=round(max(5, sensor.rate_hz / 5)), reliability=ReliabilityPolicy.BEST_EFFORT)
        kind, topic = message_class(sensor.type), sensor.topic
        if own:
            subscriptions.append(middleware.raw_subscription(node, kind, topic, qos))
        else:
            subscriptions.append(node.create_subscription(kind, topic, callback, qos, raw=raw))
    return subscriptions


def spin(make: Callable[[], Any], *, raw: bool) -> Callable[[Node, Received], None]:
    """Receive with an executor."""

    def run(node: Node, received: Received) -> None:
        subscribe(node, received.serialized if raw else received.typed, raw=raw)
        node.create_timer(PERIOD_NS / 1e9, received.on_timer)
        executor = make()
        executor.add_node(node)
        while rclpy.ok():
            executor.spin_once(timeout_sec=1.0)

    return run


def events_executor() -> Any:
    """The EventsExecutor of Kilted and later."""
    return import_module("rclpy.experimental").EventsExecutor()


def own_thread(node: Node, received: Received) -> None:
    """Receive with a wait set and rcl's take."""
    process.reduce_timer_slack()
    subscriptions = subscribe(node, received.serialized, raw=True, own=True)
    subscriber, waiter = RawSubscriber(), middleware.Waiter(node, len(subscriptions))
    due_ns = time.monotonic_ns() + PERIOD_NS
    while rclpy.ok():
        for subscription in subscriptions:
            while message := subscriber.take(subscription):
                received.serialized(message.data)
        left_ns = due_ns - time.monotonic_ns()
        if left_ns > 200_000:
            waiter.wait(left_ns - 200_000, subscriptions)
            continue
        time.sleep(max(0, left_ns) / 1e9)
        received.on_timer()
        due_ns += PERIOD_NS


def fusion_node(node: Node, received: Received) -> None:
    """Receive with the node's clock source, into an engine."""
    process.reduce_timer_slack()
    spec = load_spec(LOAD.spec(delay_ms=10.0))
    engine = FusionEngine(spec, device="cpu")
    ingest = Ingest(spec, engine, definitions(spec))
    topics = TopicSubscriptions(node, spec, ingest)
    push = topics.push

    def counted(topic: Any, message: Any, arrival_ns: int) -> None:
        start_ns = time.perf_counter_ns()
        push(topic, message, arrival_ns)
        received.push_ns[topic.large].append(time.perf_counter_ns() - start_ns)
        received.serialized(message.data)

    topics.push = counted  # type: ignore[method-assign]
    clock = WallClockSource(node, topics, engine, lambda error: os.kill(os.getpid(), signal.SIGINT))
    while rclpy.ok():
        for _ in clock.step():
            pass
        clock.wait()


WAYS: dict[str, Callable[[Node, Received], None]] = {
    "SingleThreadedExecutor, typed": spin(SingleThreadedExecutor, raw=False),
    "SingleThreadedExecutor, serialized": spin(SingleThreadedExecutor, raw=True),
    "MultiThreadedExecutor, serialized": spin(lambda: MultiThreadedExecutor(num_threads=2), raw=True),
    "EventsExecutor, serialized": spin(events_executor, raw=True),
    "own thread, wait set and take": own_thread,
    "the node: received, decoded, kept, ticks computed": fusion_node,
}


def receive(way: str) -> None:
    """Receive messages until told to stop, then print what that cost."""
    process.prepare()
    rclpy.init()
    node = rclpy.create_node("ingest")
    received = Received()

    def listen() -> None:
        say_ready()
        await_command(GO)
        messages, calls = len(received.latency_ns), len(received.timer_ns)
        cpu_begin_s, begin_s = time.process_time(), time.monotonic()
        await_command(STOP)
        cpu_s, wall_s = time.process_time() - cpu_begin_s, time.monotonic() - begin_s
        latency_ns = received.latency_ns[messages:]
        gaps_ms = [abs(b - a - PERIOD_NS) / 1e6 for a, b in itertools.pairwise(received.timer_ns[calls:])]
        found = {
            "received": len(latency_ns),
            "cpu_cores": cpu_s / wall_s,
            "latency_ms": percentiles([value / 1e6 for value in latency_ns]),
            "interval_error_ms": percentiles(gaps_ms),
            "push_us": [percentiles([value / 1e3 for value in received.push_ns[large]]) for large in (False, True)],
        }
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        os._exit(0)  # without waiting for what spins

    threading.Thread(target=listen, daemon=True).start()
    process.freeze_gc()
    WAYS[way](node, received)


if __name__ == "__main__":
    receive(sys.argv[1])
