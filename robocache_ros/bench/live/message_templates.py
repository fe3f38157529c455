"""Messages of the load as bytes: serialized once; afterwards only stamp and number are overwritten."""

from __future__ import annotations

import ctypes
import struct
from array import array
from typing import Any

import numpy as np

from robocache_ros.bench.live.load import POINT_STEP, Load, Sensor, joint_names
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
