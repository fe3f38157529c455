"""What a message costs until Python has it, by the way it is taken: `PYTHONPATH=. python benchmarks/ingest.py`.

A robot's small messages (joints at 500 Hz, IMU at 200, pose at 100) and two cameras of 640x480 at 30 Hz, from one
publisher process through the shipped transport profile into one process that takes them. Each way is a run of its own:

- executors of rclpy with a callback each topic, typed or serialized, and a timer of 50 Hz;
- a wait set and rcl's take in a thread of its own, as `fusion_node` does it, with 50 beats a second;
- the same with all that the node does with a message on the CPU: decoded, kept, ticks made, but not published.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rclpy
from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy

from robocache_ros.bench.children import GO, READY, STOP, Family, await_word, say_ready
from robocache_ros.bench.live import environment, machine
from robocache_ros.bench.load import Load
from robocache_ros.bench.record import percentiles
from robocache_ros.engine import FusionEngine, Ingest
from robocache_ros.nodes import compat, process
from robocache_ros.nodes.drivers import WallDriver
from robocache_ros.nodes.intake import Intake, definitions
from robocache_ros.nodes.taking import Taker
from robocache_ros.spec import load_spec

RESULTS = Path(__file__).parent / "results"
STAMP = struct.Struct("<iI")
LOAD = Load(cameras=2, width=640, height=480, cloud_hz=0)
PERIOD_NS = 20_000_000
WARM_UP_S = 2.0


class Taken:
    """What was taken, and when the beats came."""

    def __init__(self) -> None:
        self.latency_ns: list[int] = []
        self.beats_ns: list[int] = []
        self.push_ns: dict[bool, list[int]] = {False: [], True: []}  # of small messages, and of cameras' frames

    def serialized(self, data: bytes | memoryview) -> None:
        """Count a message by its bytes."""
        seconds, nanoseconds = STAMP.unpack_from(data, 4)
        self.latency_ns.append(time.time_ns() - seconds * 1_000_000_000 - nanoseconds)

    def typed(self, message: Any) -> None:
        """Count a message by its header."""
        stamp = message.header.stamp
        self.latency_ns.append(time.time_ns() - stamp.sec * 1_000_000_000 - stamp.nanosec)

    def beat(self) -> None:
        """Count a beat."""
        self.beats_ns.append(time.monotonic_ns())


def subscribe(node: Node, callback: Callable[[Any], None], *, raw: bool, own: bool = False) -> list[Any]:
    """A best-effort subscription for each sensor."""
    apart = {"callback_group": compat.OwnThread(), "event_callbacks": compat.no_events()} if own else {}
    subscriptions = []
    for sensor in LOAD.sensors:
        qos = QoSProfile(depth=round(max(5, sensor.rate_hz / 5)), reliability=ReliabilityPolicy.BEST_EFFORT)
        kind = compat.load_message_class(sensor.type)
        subscriptions.append(node.create_subscription(kind, sensor.topic, callback, qos, raw=raw, **apart))
    return subscriptions


def spin(make: Callable[[], Any], *, raw: bool) -> Callable[[Node, Taken], None]:
    """By an executor."""

    def run(node: Node, taken: Taken) -> None:
        subscribe(node, taken.serialized if raw else taken.typed, raw=raw)
        node.create_timer(PERIOD_NS / 1e9, taken.beat)
        executor = make()
        executor.add_node(node)
        while rclpy.ok():
            executor.spin_once(timeout_sec=1.0)

    return run


def events_executor() -> Any:
    """Of Kilted and later."""
    from rclpy.experimental import EventsExecutor

    return EventsExecutor()


def own_thread(node: Node, taken: Taken) -> None:
    """By a wait set and rcl's take."""
    process.be_punctual()
    subscriptions = subscribe(node, taken.serialized, raw=True, own=True)
    taker, waiter = Taker(), compat.Waiter(node, subscriptions)
    due_ns = time.monotonic_ns() + PERIOD_NS
    while rclpy.ok():
        for subscription in subscriptions:
            while message := taker.take(subscription):
                taken.serialized(message.data)
        left_ns = due_ns - time.monotonic_ns()
        if left_ns > 200_000:
            waiter.wait(left_ns - 200_000)
            continue
        time.sleep(max(0, left_ns) / 1e9)
        taken.beat()
        due_ns += PERIOD_NS


def whole_node(node: Node, taken: Taken) -> None:
    """By the node's own driver, into an engine."""
    process.be_punctual()
    spec = load_spec(LOAD.spec(delay_ms=10.0))
    engine = FusionEngine(spec, device="cpu")
    ingest = Ingest(spec, engine, definitions(spec))
    intake = Intake(node, spec, ingest)
    push = intake.push

    def counted(feed: Any, message: Any, arrival_ns: int) -> None:
        start_ns = time.perf_counter_ns()
        push(feed, message, arrival_ns)
        taken.push_ns[feed.large].append(time.perf_counter_ns() - start_ns)
        taken.serialized(message.data)

    intake.push = counted  # type: ignore[method-assign]
    driver = WallDriver(node, intake, engine, lambda error: os.kill(os.getpid(), signal.SIGINT))
    while rclpy.ok():
        for _ in driver.step():
            pass
        driver.wait()


WAYS: dict[str, Callable[[Node, Taken], None]] = {
    "SingleThreadedExecutor, typed": spin(SingleThreadedExecutor, raw=False),
    "SingleThreadedExecutor, serialized": spin(SingleThreadedExecutor, raw=True),
    "MultiThreadedExecutor, serialized": spin(lambda: MultiThreadedExecutor(num_threads=2), raw=True),
    "EventsExecutor, serialized": spin(events_executor, raw=True),
    "own thread, wait set and take": own_thread,
    "the node: taken, decoded, kept, ticks made": whole_node,
}


def child(way: str) -> None:
    """Take messages until told to stop, then say what that cost."""
    process.prepare()
    rclpy.init()
    node = rclpy.create_node("ingest")
    taken = Taken()

    def listen() -> None:
        say_ready()
        await_word(GO)
        messages, beats = len(taken.latency_ns), len(taken.beats_ns)
        cpu_begin_s, begin_s = time.process_time(), time.monotonic()
        await_word(STOP)
        cpu_s, wall_s = time.process_time() - cpu_begin_s, time.monotonic() - begin_s
        latency_ns = taken.latency_ns[messages:]
        gaps_ms = [abs(b - a - PERIOD_NS) / 1e6 for a, b in itertools.pairwise(taken.beats_ns[beats:])]
        found = {
            "taken": len(latency_ns),
            "cpu_cores": cpu_s / wall_s,
            "latency_ms": percentiles([value / 1e6 for value in latency_ns]),
            "beat_off_ms": percentiles(gaps_ms),
            "push_us": [percentiles([value / 1e3 for value in taken.push_ns[large]]) for large in (False, True)],
        }
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        os._exit(0)  # without waiting for what spins

    threading.Thread(target=listen, daemon=True).start()
    process.settle()
    WAYS[way](node, taken)


def measure(way: str, seconds: float) -> dict[str, Any]:
    """One run."""
    env = environment(tuned=True)
    with tempfile.TemporaryDirectory() as folder, Family(Path(folder), env) as family:
        taker = subprocess.Popen(
            [sys.executable, __file__, "--way", way],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **env},
        )  # fmt: skip
        assert taker.stdin is not None
        assert taker.stdout is not None
        assert taker.stdout.readline().strip() == READY
        names = [sensor.name for sensor in LOAD.sensors]
        publisher = family.start(
            "publisher", "publisher", load=asdict(LOAD), sensors=names, seconds=WARM_UP_S + seconds + 1.0,
            tuned=True, reliability="best_effort",
        )  # fmt: skip
        publisher.await_ready()
        publisher.tell(GO)
        time.sleep(WARM_UP_S + 1.0)
        taker.stdin.write(GO + "\n")
        taker.stdin.flush()
        time.sleep(seconds)
        taker.stdin.write(STOP + "\n")
        taker.stdin.flush()
        found: dict[str, Any] = json.loads(taker.stdout.readline())
        taker.wait(10)
        publisher.await_ready()
        publisher.tell(STOP)
        family.result(publisher)
    expected = sum(sensor.rate_hz for sensor in LOAD.sensors) * seconds
    return {"way": way, "share": found["taken"] / expected, **found}


def main() -> None:
    """Measure every way, print and write results/ingest.json and .md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", help="of a child process")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    given = parser.parse_args()
    if given.way:
        return child(given.way)
    rows = [measure(way, given.seconds) for way in WAYS]
    about = {**machine(), "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
    (given.out / "ingest.json").write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
    lines = [
        "# What a message costs until Python has it",
        "",
        f"{about['cores']} cores, torch {about['torch']}, Python {about['python']}, {about['date']}; "
        f"{given.seconds:g} s each. `PYTHONPATH=. python benchmarks/ingest.py`",
        "",
        "| way | taken % | CPU, cores | CPU us a message | latency ms p50 / p99 | beat off by ms p50 / p99 / max |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        late, off = row["latency_ms"] or {}, row["beat_off_ms"]
        each = row["cpu_cores"] * given.seconds / max(row["taken"], 1) * 1e6
        lines.append(
            f"| {row['way']} | {100 * row['share']:.1f} | {row['cpu_cores']:.3f} | {each:.0f} | "
            + " / ".join(f"{late.get(key, float('nan')):.2f}" for key in ("p50", "p99"))
            + " | "
            + (" / ".join(f"{off[key]:.2f}" for key in ("p50", "p99", "max")) if off else "-")
            + " |"
        )
    small, frames = ("{p50:.0f} / {p99:.0f}".format(**found) for found in rows[-1]["push_us"])
    lines += [
        "",
        f"Of the node's, to decode and keep a message, us p50 / p99: {small} a small one, {frames} a camera's frame.",
    ]
    text = "\n".join(lines) + "\n"
    (given.out / "ingest.md").write_text(text)
    sys.stdout.write(text)
    return None


if __name__ == "__main__":
    main()
