"""The load's publisher process: each sensor at its rate, stamped when it is published."""

from __future__ import annotations

import heapq
import time
from typing import Any

import rclpy
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from robocache_ros.bench.live.load import Load, Sensor
from robocache_ros.bench.live.message_templates import Template, template
from robocache_ros.bench.live.processes import GO, STOP, await_command, leave_result, read_options, say_ready
from robocache_ros.nodes.middleware import compat, process

MATCH_S = 30.0
BEHIND_PERIODS = 3  # a publisher that falls back further leaves messages out, as a camera drops frames


class Publisher:
    """Publishes some sensors on a schedule.

    Args:
        load: rates and sizes.
        sensors: those of the load that this process publishes.
        reliability: of the publishers.
    """

    def __init__(self, load: Load, sensors: tuple[Sensor, ...], reliability: str) -> None:
        self.node = rclpy.create_node("bench_publisher")
        self.skipped = dict.fromkeys((s.name for s in sensors), 0)
        qos = QoSProfile(
            depth=10,
            reliability=ReliabilityPolicy.RELIABLE if reliability == "reliable" else ReliabilityPolicy.BEST_EFFORT,
            durability=DurabilityPolicy.VOLATILE,
        )
        self._sensors = sensors
        self._templates: list[Template] = [template(sensor, load, i) for i, sensor in enumerate(sensors)]
        self._publishers: list[Any] = [self.node.create_publisher(message_class(s.type), s.topic, qos) for s in sensors]

    def await_subscribers(self) -> None:
        """Wait until every topic has a subscriber, so that each message can be received."""
        end = time.monotonic() + MATCH_S
        while time.monotonic() < end and not all(p.get_subscription_count() for p in self._publishers):
            time.sleep(0.02)

    def run(self, seconds: float) -> None:
        """Publish for the given time."""
        start = time.monotonic()
        periods = [1 / sensor.rate_hz for sensor in self._sensors]
        # Cameras are not triggered together: each sensor starts at a different time.
        due = [(start + (i + 1) / len(periods) * period, i) for i, period in enumerate(periods)]
        heapq.heapify(due)
        while due[0][0] < start + seconds:
            at, i = due[0]
            ahead = at - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            elif -ahead > BEHIND_PERIODS * periods[i] and -ahead > 0.02:
                self.skipped[self._sensors[i].name] += 1
                heapq.heapreplace(due, (at + periods[i], i))
                continue
            self._publishers[i].publish(self._templates[i].stamped(time.time_ns()))
            heapq.heapreplace(due, (at + periods[i], i))

    def result(self) -> dict[str, Any]:
        """Messages sent and left out, by sensor."""
        sent = {s.name: t.sent for s, t in zip(self._sensors, self._templates, strict=True)}
        return {"sent": sent, "skipped": self.skipped}


def message_class(name: str) -> Any:
    """The message class of a type that is installed."""
    return compat.load_message_class(name)


def main() -> None:
    """Run as a child: ready, then go."""
    options = read_options()
    if options["tuned"]:
        process.prepare()
    rclpy.init()
    load = Load(**options["load"])
    sensors = tuple(s for s in load.sensors if s.name in options["sensors"])
    publisher = Publisher(load, sensors, options["reliability"])
    say_ready()
    await_command(GO)
    publisher.await_subscribers()
    started_ns = time.time_ns()
    publisher.run(options["seconds"])
    leave_result(options["result"], {**publisher.result(), "started_ns": started_ns})
    say_ready()
    await_command(STOP)  # its shared memory has then been read
    publisher.node.destroy_node()
    rclpy.try_shutdown()


if __name__ == "__main__":
    main()
