"""The fusion node on the CPU, fed by test/data/panda_lift over real DDS as if by the robot: how even its beat is.

    PYTHONPATH=. python benchmarks/live_panda.py --loops 5

The recording's messages are published at their log times, their stamps moved to now, so that the node runs by the wall
clock. A tick's lateness is that of the end of its publish call, against `t_k + delay_ms`.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rclpy
import yaml
from rclpy.qos import QoSProfile

from robocache_ros.bags.player import play
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.bench.children import Family
from robocache_ros.bench.live import environment, machine
from robocache_ros.bench.monitor import Monitor
from robocache_ros.bench.record import percentiles
from robocache_ros.nodes import compat, process
from robocache_ros.spec import load_spec

ROOT = Path(__file__).resolve().parents[1]
STAMP = struct.Struct("<iI")
SETTLE_S, WARM_UP_S = 2.0, 3.0


def publish_recording(bag: Bag, loops: int) -> int:
    """Publish a recording as if it happened now; returns how many messages that were."""
    process.prepare()
    node = rclpy.create_node("panda")
    publishers: dict[str, Any] = {
        name: node.create_publisher(compat.load_message_class(topic.type), name, QoSProfile(depth=10))
        for name, topic in bag.topics.items()
        if not topic.type.startswith("tf2_msgs/")
    }
    messages = list(bag.messages(set(publishers)))  # ahead, or all that was due while they were read would go at once
    time.sleep(SETTLE_S)  # for the subscriptions to be found
    sent = 0
    for _ in range(loops):
        moved_ns = time.time_ns() - bag.start_ns

        def publish(message: RawMessage, moved_ns: int = moved_ns) -> bool:
            nonlocal sent
            data = message.data
            if not bag.topics[message.topic].type.startswith("std_msgs/"):  # these have no header
                seconds, nanoseconds = STAMP.unpack_from(data, 4)
                stamp_ns = seconds * 1_000_000_000 + nanoseconds + moved_ns
                data = b"".join((data[:4], STAMP.pack(*divmod(stamp_ns, 1_000_000_000)), data[12:]))
            publishers[message.topic].publish(bytes(data))
            sent += 1
            return False

        play(messages, publish, first_ns=bag.start_ns)
    node.destroy_node()
    return sent


def main() -> None:
    """Measure, print and write."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--loops", type=int, default=5)
    given.add_argument("--lead-ms", type=float, help="other than the spec says")
    given.add_argument("--out", type=Path)
    arguments = given.parse_args()
    spec = yaml.safe_load((ROOT / "config" / "panda_lift.yaml").read_text())
    if arguments.lead_ms is not None:
        spec["lead_ms"] = arguments.lead_ms
    own = environment(tuned=True)
    os.environ.update(own)
    rclpy.init()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, Bag(ROOT / "test" / "data" / "panda_lift") as bag:
        path = Path(folder, "spec.yaml")
        path.write_text(yaml.safe_dump(spec, sort_keys=False))
        with Family(Path(folder), own) as family:
            node = family.start("node", "traced_node", spec=str(path), device="cpu", rows=2_000 * 15 * arguments.loops)
            node.await_ready()
            monitor = Monitor(node.pid, gpu=False)
            begin_ns = time.time_ns() + round((SETTLE_S + WARM_UP_S) * 1e9)
            sent = publish_recording(bag, arguments.loops)
            end_ns = time.time_ns()
            costs = monitor.stop()
            node.end()
            found = family.result(node)
    rclpy.try_shutdown()
    ticks_ns = found["ticks.tick_ns"]
    inside = (ticks_ns >= begin_ns) & (ticks_ns < end_ns)
    beats_ns = ticks_ns[inside] + load_spec(spec).delay_ns
    steps = ("asked", "made", "ready", "published")
    result = {
        "machine": machine(),
        "lead_ms": spec["lead_ms"],
        "load_before": load_before,
        "messages_sent": sent,
        "received": {name: counts.get("received", 0) for name, counts in found["counters"].items()},
        "ticks": int(inside.sum()),
        "ticks_due": round((end_ns - begin_ns) / 20e6),
        "after_the_beat_ms": {
            step: percentiles((found[f"ticks.{step}_ns"][inside] - beats_ns) / 1e6) for step in steps
        },
        "cpu_cores": costs.get("cpu_cores"),
        "rss_mib_every_10_s": [round(mib, 2) for mib in costs["memory_samples"]["rss_mib"][::10]],
    }
    text = json.dumps(result, indent=1) + "\n"
    sys.stdout.write(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
