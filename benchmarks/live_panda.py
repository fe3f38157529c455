"""The fusion node on the CPU under the messages of a robot recording, over real DDS: how late its ticks are.

    python -m benchmarks.live_panda --loops 5

The messages of test/data/panda_lift are published at their log times, with their stamps moved to now, so that the node
runs by the wall clock. The lateness of a tick is the end of its publish call less `t_k + delay_ms`. Run it in a
checkout of the repository, which has the recording.
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
from robocache_ros.bench.live import Monitor, environment, machine
from robocache_ros.bench.processes import Family, percentiles
from robocache_ros.bench.publisher import message_class
from robocache_ros.nodes import process
from robocache_ros.programs import HelpFormatter
from robocache_ros.spec import load_spec

ROOT = Path(__file__).resolve().parents[1]
STAMP = struct.Struct("<iI")
DISCOVERY_S, WARM_UP_S = 2.0, 3.0


def publish_recording(bag: Bag, loops: int) -> int:
    """Publish a recording with current stamps; returns the number of messages."""
    process.prepare()
    node = rclpy.create_node("panda")
    publishers: dict[str, Any] = {
        name: node.create_publisher(message_class(topic.type), name, QoSProfile(depth=10))
        for name, topic in bag.topics.items()
        if not topic.type.startswith("tf2_msgs/")
    }
    # Read before the first is due: messages that fall due while they are read would be published at once.
    messages = list(bag.messages(set(publishers)))
    time.sleep(DISCOVERY_S)  # for the subscriptions to be found
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
    given = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    given.add_argument("--loops", type=int, default=5, help="Play the recording this many times.")
    given.add_argument("--lead-ms", type=float, help="Replace lead_ms of the spec.")
    given.add_argument("--out", type=Path, help="Write the result to this file.")
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
            begin_ns = time.time_ns() + round((DISCOVERY_S + WARM_UP_S) * 1e9)
            sent = publish_recording(bag, arguments.loops)
            end_ns = time.time_ns()
            costs = monitor.stop()
            node.end()
            found = family.result(node)
    rclpy.try_shutdown()
    ticks_ns = found["ticks.tick_ns"]
    inside = (ticks_ns >= begin_ns) & (ticks_ns < end_ns)
    due_ns = ticks_ns[inside] + load_spec(spec).delay_ns
    steps = ("asked", "made", "ready", "published")
    result = {
        "machine": machine(),
        "lead_ms": spec["lead_ms"],
        "load_before": load_before,
        "messages_sent": sent,
        "received": {name: counts.get("received", 0) for name, counts in found["counters"].items()},
        "ticks": int(inside.sum()),
        "ticks_due": round((end_ns - begin_ns) / 20e6),
        "after_emission_ms": {step: percentiles((found[f"ticks.{step}_ns"][inside] - due_ns) / 1e6) for step in steps},
        "cpu_cores": costs.get("cpu_cores"),
        "rss_mib_every_10_s": [round(mib, 2) for mib in costs["memory_samples"]["rss_mib"][::10]],
    }
    text = json.dumps(result, indent=1) + "\n"
    sys.stdout.write(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
