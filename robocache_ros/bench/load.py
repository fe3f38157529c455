"""The load of a robot: rates and sizes of its messages, the spec that fuses them, and the options of a measurement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

JOINTS = 9  # position, velocity and effort of each; with IMU and pose a row of 40 columns
POINT_STEP = 16  # x, y, z and intensity, float32
GRID: dict[str, Any] = {"origin_m": [-0.64, -0.64, 0.0], "size_m": 0.02, "shape": [64, 64, 64]}


@dataclass(frozen=True)
class Sensor:
    """One topic of the load."""

    name: str
    type: str
    rate_hz: float

    @property
    def topic(self) -> str:
        """The topic that it is published on."""
        return f"/bench/{self.name}"


@dataclass(frozen=True)
class Load:
    """Sensors, their rates and sizes; a rate of 0 leaves a sensor out."""

    cameras: int = 2
    width: int = 1920
    height: int = 1080
    camera_hz: float = 30.0
    points: int = 100_000
    cloud_hz: float = 10.0
    joints_hz: float = 500.0
    imu_hz: float = 200.0
    pose_hz: float = 100.0

    @property
    def sensors(self) -> tuple[Sensor, ...]:
        """Every sensor that publishes."""
        every = (
            *(Sensor(f"camera{i}", "sensor_msgs/msg/Image", self.camera_hz) for i in range(self.cameras)),
            Sensor("cloud", "sensor_msgs/msg/PointCloud2", self.cloud_hz),
            Sensor("joints", "sensor_msgs/msg/JointState", self.joints_hz),
            Sensor("imu", "sensor_msgs/msg/Imu", self.imu_hz),
            Sensor("pose", "geometry_msgs/msg/PoseStamped", self.pose_hz),
        )
        return tuple(sensor for sensor in every if sensor.rate_hz)

    def spec(self, *, delay_ms: float, horizon: int = 16, reliability: str = "best_effort") -> dict[str, Any]:
        """The fusion spec of the load: cameras to 3x224x224, clouds to 64^3 voxels, joints, IMU and pose to columns."""
        fields: dict[str, list[tuple[str, dict[str, Any]]]] = {
            "camera": [("", {"image": {"size": [224, 224], "normalize": "imagenet"}})],
            "cloud": [("", {"voxels": GRID, "max_age_ms": 300})],
            "joints": [(f, {"names": joint_names()}) for f in ("position", "velocity", "effort")],
            "imu": [("angular_velocity", {}), ("linear_acceleration", {})],
            "pose": [("pose.position", {}), ("pose.orientation", {"align": "slerp"})],
        }
        streams: dict[str, dict[str, Any]] = {}
        for sensor in self.sensors:
            period_ms = 1000 / sensor.rate_hz
            # As deep as what comes in a fifth of a second, so that a stall of the process loses nothing.
            qos = {"reliability": reliability, "depth": max(5, round(sensor.rate_hz / 5))}
            for member, keys in fields[sensor.name.rstrip("0123456789")]:
                name = "_".join(filter(None, (sensor.name, member.rpartition(".")[2])))
                streams[name] = {"topic": sensor.topic, "type": sensor.type, "rate_hz": sensor.rate_hz, "qos": qos}
                streams[name] |= {"max_age_ms": max(100.0, 3 * period_ms), **keys}
                if member:
                    streams[name] |= {"field": member, "max_gap_ms": max(50.0, 3 * period_ms)}
        return {"robocache": 1, "rate_hz": 50, "horizon": horizon, "delay_ms": delay_ms, "streams": streams}


def joint_names() -> list[str]:
    """The joints of the load."""
    return [f"joint{i}" for i in range(JOINTS)]


WARM_UP_S = 3.0  # published and counted, but not in the latencies: compilers and caches


@dataclass(frozen=True)
class Options:
    """Load, device and transport of a measurement."""

    load: Load = field(default_factory=Load)
    seconds: float = 60.0
    device: str = "auto"
    delay_ms: float = 3.0
    lead_ms: float = 1.5  # of delay_ms: the tick is computed this long before it is published
    via: str = "auto"  # auto, message: FusedSubscriber; ring: the ring itself
    reliability: str = "best_effort"
    separate_publishers: bool = False  # publish from a process for each camera, one for clouds, one for the rest
