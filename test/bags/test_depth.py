from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rosbags.typesys import Stores, get_typestore

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from test.bags.conftest import MS, START_NS

store = get_typestore(Stores.LATEST)
TYPES = {"/depth": "sensor_msgs/msg/Image", "/camera_info": "sensor_msgs/msg/CameraInfo"}
SPEC = {
    "robocache": 1,
    "streams": {
        "grid": {
            "topic": "/depth",
            "type": "sensor_msgs/msg/Image",
            "camera_info": "/camera_info",
            "voxels": {"origin_m": [-1, -1, 0], "size_m": 0.5, "shape": [4, 4, 4]},
        }
    },
}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A depth camera that sees a wall 1.2 m away, at 20 Hz, with its intrinsics."""
    types = store.types
    messages = []
    for k in range(20):
        stamp = START_NS + 50 * k * MS
        time = types["builtin_interfaces/msg/Time"](*divmod(stamp, 10**9))
        header = types["std_msgs/msg/Header"](time, "camera")
        matrix = np.array([4.0, 0, 2, 0, 4, 2, 0, 0, 1])
        roi = types["sensor_msgs/msg/RegionOfInterest"](0, 0, 0, 0, False)
        projection = np.insert(matrix, [3, 6, 9], 0.0)
        info = types["sensor_msgs/msg/CameraInfo"](
            header, 4, 4, "plumb_bob", np.zeros(5), matrix, np.eye(3).ravel(), projection, 0, 0, roi
        )
        wall = np.full(16, 1200, np.uint16).view(np.uint8)
        image = types["sensor_msgs/msg/Image"](header, 4, 4, "16UC1", 0, 8, wall)
        for topic, message in (("/camera_info", info), ("/depth", image)):
            messages.append((topic, stamp + 5 * MS, bytes(store.serialize_cdr(message, TYPES[topic]))))
    return write_bag(tmp_path / "bag", TYPES, messages)


def test_a_depth_image_is_read_with_what_completes_it(recording: Path) -> None:
    with Bag(recording) as bag:
        run = BagRun(bag, load_spec(SPEC))
        grids = np.concatenate([part.media["grid"].numpy() for part in run.frames()])
    assert len(grids) > 40
    assert (grids[:, :, :, 2].sum(axis=(1, 2)) > 0).all()  # the wall, between 1.0 and 1.5 m
    assert not grids[:, :, :, [0, 1, 3]].any()
    assert run.counters["grid"]["received"] == 20


def test_a_recording_without_the_intrinsics_is_refused(recording: Path) -> None:
    raw = {**SPEC, "streams": {"grid": {**SPEC["streams"]["grid"], "camera_info": "/depth/camera_info"}}}
    with Bag(recording) as bag, pytest.raises(RoboCacheError, match=r"has no topic /depth/camera_info \(did you mean"):
        bag.require(load_spec(raw))


def test_a_companion_of_another_type_is_named_by_its_key(recording: Path) -> None:
    raw = {**SPEC, "streams": {"grid": {**SPEC["streams"]["grid"], "camera_info": "/depth"}}}
    with (
        Bag(recording) as bag,
        pytest.raises(RoboCacheError, match=r"streams\.grid\.camera_info: sensor_msgs/msg/Camera"),
    ):
        bag.require(load_spec(raw))
