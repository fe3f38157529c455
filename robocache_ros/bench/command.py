"""`robocache bench live` as a command of a typer application."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate annotations that are text.

import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from robocache_ros.bench.load import Load
from robocache_ros.errors import RoboCacheError

_SIZE = Load()
VIAS = ("auto", "message", "ring")


def live(
    seconds: Annotated[float, typer.Option(help="Seconds to measure, after a warm-up.")] = 60.0,
    device: Annotated[str, typer.Option(help="Device of the node: auto, cpu, cuda, cuda:<index>.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for live.json and live.png.")] = Path("bench-live"),
    naive: Annotated[bool, typer.Option("--naive", help="Measure the naive node first.")] = False,
    via: Annotated[str, typer.Option(help="Transport of frames to the consumer: auto, message, ring.")] = "auto",
    delay_ms: Annotated[float, typer.Option(help="Publish a tick this many ms after its time.")] = 3.0,
    lead_ms: Annotated[float, typer.Option(help="Compute a tick this many ms before it is published.")] = 1.5,
    reliability: Annotated[str, typer.Option(help="Reliability: best_effort or reliable.")] = "best_effort",
    separate_publishers: Annotated[
        bool,
        typer.Option("--separate-publishers", help="Publish from a process for each camera, for clouds, for the rest."),
    ] = False,
    cameras: Annotated[int, typer.Option(help="Number of cameras.")] = _SIZE.cameras,
    width: Annotated[int, typer.Option(help="Width of an image.")] = _SIZE.width,
    height: Annotated[int, typer.Option(help="Height of an image.")] = _SIZE.height,
    camera_hz: Annotated[float, typer.Option(help="Images per second of each camera.")] = _SIZE.camera_hz,
    points: Annotated[int, typer.Option(help="Points per cloud, 16 bytes each.")] = _SIZE.points,
    cloud_hz: Annotated[float, typer.Option(help="Clouds per second; 0: none.")] = _SIZE.cloud_hz,
    joints_hz: Annotated[float, typer.Option(help="Joint states per second; 0: none.")] = _SIZE.joints_hz,
    imu_hz: Annotated[float, typer.Option(help="IMU messages per second; 0: none.")] = _SIZE.imu_hz,
    pose_hz: Annotated[float, typer.Option(help="Poses per second; 0: none.")] = _SIZE.pose_hz,
) -> None:
    """Measure losses, latency and cost of the node under the load of a robot, up to a consumer."""
    import_module("rclpy")  # a missing one is named here, not in the log of a process
    from robocache_ros.bench.live import main
    from robocache_ros.bench.load import Options

    load = Load(cameras, width, height, camera_hz, points, cloud_hz, joints_hz, imu_hz, pose_hz)
    if not load.sensors:
        raise RoboCacheError("rates: all are 0, so nothing is published; give at least one above 0")
    if not 0 < seconds <= 3600:
        raise RoboCacheError(f"seconds: {seconds:g} is not in 0..3600; give a duration in s")
    if via not in VIAS:
        raise RoboCacheError(f"via: {via!r} is not one of {', '.join(VIAS)}")
    options = Options(load, seconds, device, delay_ms, lead_ms, via, reliability, separate_publishers)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # with the measured processes
    try:
        main(options, naive=naive, out=out)
    finally:
        signal.signal(signal.SIGTERM, before)
