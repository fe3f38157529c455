"""The load's publisher process: each sensor at its rate, stamped when it is published."""

from __future__ import annotations

import ctypes
import heapq
import struct
import time
from array import array
from typing import Any

import numpy as np
import rclpy
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from robocache_ros.bench.load import POINT_STEP, Load, Sensor, joint_names
from robocache_ros.bench.processes import GO, STOP, await_command, leave_result, read_options, say_ready
from robocache_ros.nodes import middleware, process
from robocache_ros.units import NS_PER_S

NUMBER = "{:010d}"  # the frame_id: counts the messages of a topic
_STAMP = struct.Struct("<iI")
_STAMP_AT, _NUMBER_AT = 4, 16  # behind the encapsulation; behind the string's length


class Template:
    """A serialized message that begins with a Header.

    `publish` accepts only bytes objects, and creating one of 6 MB for each frame would cost more than publishing it.
    Stamp and number are therefore written into the bytes object, which has no other user.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sent = 0
        self._address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0

    def stamped(self, stamp_ns: int) -> bytes:
        """The next message, with the given stamp."""
        stamp = _STAMP.pack(*divmod(stamp_ns, NS_PER_S))
        ctypes.memmove(self._address + _STAMP_AT, stamp, len(stamp))
        ctypes.memmove(self._address + _NUMBER_AT, NUMBER.format(self.sent).encode(), 10)
        self.sent += 1
        return self.data


def template(sensor: Sensor, load: Load, seed: int = 0) -> Template:
    """A message of a sensor, filled with random values."""
    from rclpy.serialization import serialize_message

    message = _message(sensor, load, np.random.default_rng(seed))
    message.header.frame_id = NUMBER.format(0)
    return Template(serialize_message(message))


def _message(sensor: Sensor, load: Load, random: np.random.Generator) -> Any:
    from geometry_msgs.msg import PoseStamped
    from sensor_msgs.msg import Image, Imu, JointState, PointCloud2, PointField

    kind = sensor.type.rpartition("/")[2]
    if kind == "Image":
        image = Image(width=load.width, height=load.height, encoding="rgb8", step=3 * load.width)
        image.data = array("B", random.bytes(3 * load.width * load.height))
        return image
    if kind == "PointCloud2":
        cloud = PointCloud2(width=load.points, height=1, point_step=POINT_STEP, row_step=POINT_STEP * load.points)
        names = ("x", "y", "z", "intensity")
        cloud.fields = [
            PointField(name=name, offset=4 * i, datatype=PointField.FLOAT32, count=1) for i, name in enumerate(names)
        ]
        cloud.data = array("B", random.uniform(-0.7, 1.4, (load.points, 4)).astype(np.float32).tobytes())
        return cloud
    if kind == "JointState":
        values = random.normal(size=(3, len(joint_names())))
        return JointState(name=joint_names(), position=values[0], velocity=values[1], effort=values[2])
    if kind == "Imu":
        return Imu()
    pose = PoseStamped()
    pose.pose.orientation.w = 1.0
    return pose


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
    return middleware.load_message_class(name)


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
