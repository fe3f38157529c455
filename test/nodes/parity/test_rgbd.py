"""A depth camera over real DDS: live ticks equal those of its recording, and a missing camera_info is reported."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("rclpy")
pytest.importorskip("rosbags", reason="needs the `bags` extra")
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CameraInfo, Image, PointCloud2, PointField
from std_msgs.msg import Header

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.nodes import frame_messages
from robocache_ros.spec import load_spec
from test.nodes.parity.live import replay
from test.nodes.rig import until

MS = 1_000_000
START_NS = 1_700_000_000 * 10**9
HEIGHT, WIDTH, FRAMES = 24, 32, 60
QOS = {"reliability": "reliable", "depth": 100}
GRID = {"origin_m": [-1, -1, 0], "size_m": 0.125, "shape": [16, 16, 24]}
TYPES = {"/depth": "sensor_msgs/msg/Image", "/info": "sensor_msgs/msg/CameraInfo", "/color": "sensor_msgs/msg/Image"}


def given(**keys: Any) -> dict[str, Any]:
    voxels = {**GRID, "reduce": "mean", "features": ["r", "g", "z"]}
    stream = {"topic": "/depth", "type": TYPES["/depth"], "camera_info": "/info", "color": "/color", "voxels": voxels}
    streams = {"rgbd": {**stream, "max_age_ms": 80, "qos": QOS, **keys}}
    return {"robocache": 1, "delay_ms": 60, "streams": streams}


def header(stamp_ns: int) -> Header:
    return Header(stamp=frame_messages.stamp(stamp_ns), frame_id="optical")


def image(stamp_ns: int, pixels: np.ndarray, encoding: str) -> Image:
    message = Image(header=header(stamp_ns), height=HEIGHT, width=WIDTH, encoding=encoding)
    message.step = pixels.nbytes // HEIGHT
    message.data = pixels.tobytes()
    return message


def camera_info(stamp_ns: int) -> CameraInfo:
    k = [28.0, 0.0, 15.5, 0.0, 29.0, 11.5, 0.0, 0.0, 1.0]
    return CameraInfo(header=header(stamp_ns), height=HEIGHT, width=WIDTH, distortion_model="plumb_bob", k=k)


@pytest.fixture
def recording(tmp_path):
    """Two seconds at 30 Hz: colour 3 ms after depth, arriving before or after it, some of it lost."""
    rng = np.random.default_rng(7)
    sent = []
    for k in range(FRAMES):
        stamp = START_NS + k * 33 * MS
        depth = (rng.uniform(0.2, 3.2, (HEIGHT, WIDTH)) * 1000).astype(np.uint16)
        color = rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        sent.append((stamp + 1 * MS, "/info", camera_info(stamp)))
        sent.append((stamp + int(rng.integers(2, 40)) * MS, "/depth", image(stamp, depth, "16UC1")))
        if rng.random() < 0.9:
            sent.append((stamp + int(rng.integers(4, 40)) * MS, "/color", image(stamp + 3 * MS, color, "rgb8")))
    sent.sort(key=lambda entry: entry[0])
    return write_bag(tmp_path / "bag", TYPES, [(topic, at, serialize_message(m)) for at, topic, m in sent])


def test_live_grids_equal_those_of_the_recording(rig, recording):
    with Bag(recording) as bag:
        parts = list(BagRun(bag, load_spec(given()), visibility="deployed", trim=False).frames())
    expected = {tick: grid for p in parts for tick, grid in zip(p.ticks_ns.tolist(), p.media["rgbd"], strict=True)}
    live = replay(rig, given(), max(expected) - 200 * MS, recording, media=True, rate=2.0).media["rgbd"]
    same = [torch.equal(grid, expected[tick]) for tick, grid in live.items() if tick in expected]
    assert len(same) >= 10
    assert all(same), f"{same.count(False)} of {len(same)} ticks differ"
    # The comparison is of voxels, not of zeros.
    assert sum(bool(grid.any()) for grid in live.values()) >= 0.5 * len(live)


def test_a_camera_without_camera_info_is_said_in_the_diagnostics(rig):
    rig.fusion(given(color="/color")).autostart()
    depth = rig.publisher(Image, "/depth")
    until(depth.get_subscription_count, "the node's subscription")
    pixels = np.full((HEIGHT, WIDTH), 1000, np.uint16)

    def reported() -> bool:
        depth.publish(image(time.time_ns(), pixels, "16UC1"))
        status = rig.status("rgbd")
        return status and "camera_info" in status.message and "unpaired:camera_info" in rig.counts("rgbd")

    until(reported, "the missing camera_info")


@pytest.mark.parametrize(("big_endian", "padding"), [(False, 0), (True, 3)])
def test_a_cloud_has_the_coordinates_that_sensor_msgs_py_reads(big_endian, padding):
    point_cloud2 = pytest.importorskip("sensor_msgs_py.point_cloud2", reason="is a package of ROS")
    from robocache_ros.ops.voxel.layouts import CloudLayout, check_cloud, column_sources
    from robocache_ros.ops.voxel.voxelize import cloud_columns

    order = ">" if big_endian else "<"
    names, kinds, offsets = ("x", "y", "z", "intensity", "ring"), ("f4", "f4", "f4", "f8", "u2"), (0, 4, 8, 16, 24)
    rng = np.random.default_rng(3)
    layout = {"names": names, "formats": [order + k for k in kinds], "offsets": offsets, "itemsize": 26 + padding}
    points = np.zeros((5, 7), layout)
    for name, kind in zip(names, kinds, strict=True):
        points[name] = rng.normal(size=points.shape) * 10 if kind[0] == "f" else rng.integers(0, 9, points.shape)
    codes = {"f4": PointField.FLOAT32, "f8": PointField.FLOAT64, "u2": PointField.UINT16}
    fields = [
        PointField(name=name, offset=offset, datatype=codes[kind], count=1)
        for name, offset, kind in zip(names, offsets, kinds, strict=True)
    ]
    cloud = PointCloud2(height=5, width=7, fields=fields, is_bigendian=big_endian, data=points.tobytes())
    cloud.point_step, cloud.row_step = points.itemsize, 7 * points.itemsize

    data = torch.frombuffer(bytearray(points.tobytes()), dtype=torch.uint8)
    read = point_cloud2.read_points(cloud, field_names=names, reshape_organized_cloud=False)  # swaps bytes in the cloud
    layout = CloudLayout(7, 5, cloud.point_step, cloud.row_step, tuple(fields), big_endian)
    known = check_cloud(data.numel(), layout)
    ours = cloud_columns(data.numpy(), known, column_sources(known, ("intensity", "ring")), None)
    for name, column in zip(names, ours, strict=True):
        assert np.array_equal(np.asarray(read[name]).reshape(-1).astype(np.float32), column)
