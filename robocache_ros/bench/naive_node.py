"""The peer: a fusion node written as in the ROS tutorials, without code of this package in its data path.

A timer of 20 ms, typed subscriptions with the sensor data profile, the newest message of each topic, NumPy to torch in
the callback, resizing and voxels by torch, `rclpy.spin`.
"""

from __future__ import annotations

import signal
import time
from typing import Any

import numpy as np
import rclpy
import torch
from geometry_msgs.msg import PoseStamped
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image, Imu, JointState, PointCloud2
from std_msgs.msg import Float32MultiArray
from torch.nn.functional import interpolate

from robocache_ros.bench.load import GRID, Load
from robocache_ros.bench.processes import Columns, leave_result, read_options, say_ready
from robocache_ros.units import NS_PER_S

CLASSES = {"Image": Image, "PointCloud2": PointCloud2, "JointState": JointState, "Imu": Imu, "PoseStamped": PoseStamped}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class NaiveFusion(Node):
    """Keeps the newest message of each topic and publishes them 50 times a second."""

    def __init__(self, load: Load, device: str, rows: int) -> None:
        super().__init__("naive_fusion")
        self.device = torch.device(device)
        self.received = {sensor.name: 0 for sensor in load.sensors}
        self.messages = Columns(("stream", "stamp_ns", "arrival_ns", "received_ns"), rows)
        self.ticks = Columns(("tick_ns", "made_ns", "published_ns"), rows)
        self.images: dict[str, torch.Tensor] = {}
        self.vectors: dict[str, torch.Tensor] = {}
        self.voxels: torch.Tensor | None = None
        self.mean = torch.tensor(MEAN, device=self.device).view(3, 1, 1)
        self.std = torch.tensor(STD, device=self.device).view(3, 1, 1)
        for number, sensor in enumerate(load.sensors):
            kind = sensor.type.rpartition("/")[2]
            take = {"Image": self._on_image, "PointCloud2": self._on_cloud}.get(kind, self._on_vector)
            self.create_subscription(
                CLASSES[kind], sensor.topic, self._counted(number, sensor.name, take), qos_profile_sensor_data
            )
        self.output = self.create_publisher(Float32MultiArray, "fused", 10)
        self.timer = self.create_timer(0.02, self._on_timer)

    def _counted(self, number: int, name: str, take: Any) -> Any:
        def callback(message: Any) -> None:
            arrival_ns = time.time_ns()
            take(name, message)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            self.received[name] += 1
            stamp = message.header.stamp
            self.messages.add(number, stamp.sec * NS_PER_S + stamp.nanosec, arrival_ns, time.time_ns())

        return callback

    def _on_image(self, name: str, message: Image) -> None:
        pixels = np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)
        image = torch.from_numpy(pixels.copy()).to(self.device).permute(2, 0, 1).float() / 255
        small = interpolate(image[None], size=(224, 224), mode="bilinear", align_corners=False)[0]
        self.images[name] = (small - self.mean) / self.std

    def _on_cloud(self, name: str, message: PointCloud2) -> None:
        points = np.frombuffer(message.data, np.float32).reshape(-1, 4)[:, :3]
        cloud = torch.from_numpy(points.copy()).to(self.device)
        shape = GRID["shape"]
        cell = ((cloud - torch.tensor(GRID["origin_m"], device=self.device)) / GRID["size_m"]).floor().long()
        inside = ((cell >= 0) & (cell < torch.tensor(shape, device=self.device))).all(dim=1)
        x, y, z = cell[inside].unbind(1)
        grid = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        grid[x, y, z] = 1
        self.voxels = grid

    def _on_vector(self, name: str, message: Any) -> None:
        if isinstance(message, JointState):
            values = [*message.position, *message.velocity, *message.effort]
        elif isinstance(message, Imu):
            rate, force = message.angular_velocity, message.linear_acceleration
            values = [rate.x, rate.y, rate.z, force.x, force.y, force.z]
        else:
            place, turn = message.pose.position, message.pose.orientation
            values = [place.x, place.y, place.z, turn.x, turn.y, turn.z, turn.w]
        self.vectors[name] = torch.tensor(values, dtype=torch.float32, device=self.device)

    def _on_timer(self) -> None:
        made_ns = time.time_ns()
        if not self.vectors:
            return
        row = torch.cat([*self.vectors.values()])
        self.output.publish(Float32MultiArray(data=row.cpu().tolist()))
        self.ticks.add(made_ns, made_ns, time.time_ns())


def main() -> None:
    """Run as a child until it is interrupted."""
    options = read_options()
    rclpy.init()
    load = Load(**options["load"])
    node = NaiveFusion(load, options["device"], options["rows"])
    say_ready()
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    arrays = {
        f"{group}.{name}": column
        for group, columns in (("messages", node.messages), ("ticks", node.ticks))
        for name, column in columns.to_dict().items()
    }
    result = {"streams": [s.name for s in load.sensors], "device": options["device"], "received": node.received}
    leave_result(options["result"], result, arrays)


if __name__ == "__main__":
    main()
