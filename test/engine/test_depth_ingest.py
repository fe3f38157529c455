"""Depth images through Ingest: what is paired, when, and the result."""

from types import SimpleNamespace

import numpy as np
import pytest
from rosbags.typesys import Stores, get_typestore

from robocache_ros.engine import FusionEngine, Ingest, Outcome
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec

MS = 1_000_000
T0 = 1_760_000_000 * 10**9
GRID = {"origin_m": [-1, -1, 0], "size_m": 0.5, "shape": [4, 4, 4]}
STORE = get_typestore(Stores.ROS2_KILTED)
STREAM = {"topic": "/depth", "type": "sensor_msgs/msg/Image", "camera_info": "/info", "voxels": GRID}


def spec(**keys):
    stream = {**STREAM, **keys}
    return load_spec({"robocache": 1, "rate_hz": 50, "delay_ms": 40, "streams": {"rgbd": stream}})


def header(stamp_ns):
    return SimpleNamespace(stamp=SimpleNamespace(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9), frame_id="")


def image(stamp_ns, pixels, encoding):
    height, width = pixels.shape[:2]
    data = np.ascontiguousarray(pixels).view(np.uint8).reshape(-1)
    step = len(data) // height
    return SimpleNamespace(
        header=header(stamp_ns), height=height, width=width, encoding=encoding, is_bigendian=0, step=step, data=data
    )


def depth(stamp_ns, millimetres=1250):
    return image(stamp_ns, np.full((1, 1), millimetres, np.uint16), "16UC1")


def color(stamp_ns, shape=(1, 1)):
    return image(stamp_ns, np.full((*shape, 3), (10, 20, 30), np.uint8), "rgb8")


def info(stamp_ns, focal=100.0, size=(1, 1)):
    window = SimpleNamespace(x_offset=0, y_offset=0, height=0, width=0, do_rectify=False)
    arrays = {
        "k": np.array([focal, 0, 0, 0, focal, 0, 0, 0, 1]),
        "p": np.zeros(12),
        "d": np.zeros(0),
        "r": np.eye(3).reshape(-1),
    }
    rest = {"distortion_model": "plumb_bob", "binning_x": 0, "binning_y": 0, "roi": window}
    return SimpleNamespace(header=header(stamp_ns), height=size[0], width=size[1], **arrays, **rest)


def deliver(ingest, feed, message, arrival_ns):
    kind = "sensor_msgs/msg/CameraInfo" if feed.endswith("camera_info") else "sensor_msgs/msg/Image"
    return ingest.serialized(feed, bytes(STORE.serialize_cdr(message, kind)), arrival_ns)


def started(fusion):
    engine = FusionEngine(fusion)
    engine.advance(T0 - 1)
    return Ingest(fusion, engine)


@pytest.mark.parametrize("waits", [False, True])
def test_a_depth_image_becomes_voxels_by_the_intrinsics_for_which_it_waits(waits):
    ingest = started(spec())
    first, second = ("rgbd/camera_info", info(T0)), ("rgbd", depth(T0))
    if waits:
        first, second = second, first
    assert deliver(ingest, *first, T0) is Outcome.WAITING
    assert deliver(ingest, *second, T0 + MS) is Outcome.ACCEPTED
    frames = ingest.engine.advance(T0 + 40 * MS)
    assert frames.media["rgbd"][0].nonzero().tolist() == [[2, 2, 2]]  # (0, 0, 1.25) m
    assert frames.valid.tolist() == [[1]]


@pytest.mark.parametrize("first", ["color", "depth"])
def test_depth_and_colour_of_one_stamp_belong_together(first):
    voxels = {**GRID, "reduce": "mean", "features": ["r", "b"]}
    ingest = started(spec(color="/color", voxels=voxels))
    deliver(ingest, "rgbd/camera_info", info(T0), T0)
    halves = [("rgbd", depth(T0)), ("rgbd/color", color(T0))]
    if first == "color":
        halves.reverse()
    deliver(ingest, "rgbd/color", color(T0 - 30 * MS), T0)  # of another image
    assert deliver(ingest, *halves[0], T0) is Outcome.WAITING
    assert deliver(ingest, *halves[1], T0 + MS) is Outcome.ACCEPTED
    assert ingest.engine.advance(T0 + 40 * MS).media["rgbd"][0, :, 2, 2, 2].tolist() == [10, 30]


def test_a_pair_arrives_when_its_later_half_does():
    ingest = started(spec(color="/color"))
    deliver(ingest, "rgbd/camera_info", info(T0), T0)
    deliver(ingest, "rgbd", depth(T0), T0)
    deliver(ingest, "rgbd/color", color(T0), T0 + 41 * MS)
    assert ingest.engine.advance(T0 + 41 * MS).valid.tolist() == [[0]]  # after the deadline of its tick
    assert ingest.engine.advance(T0 + 60 * MS).valid.tolist() == [[1]]


def test_images_without_their_other_half_are_dropped_and_counted():
    ingest = started(spec(color="/color"))
    for i in range(20):
        deliver(ingest, "rgbd", depth(T0 + i), T0 + i)
    assert ingest.counters["rgbd"]["unpaired"] == 12


def test_colour_of_another_size_is_refused_with_the_way_out(caplog):
    ingest = started(spec(color="/color"))
    deliver(ingest, "rgbd/camera_info", info(T0), T0)
    deliver(ingest, "rgbd", depth(T0), T0)
    assert deliver(ingest, "rgbd/color", color(T0, (2, 2)), T0) is Outcome.DROPPED
    assert ingest.counters["rgbd"]["dropped:color_size"] == 1
    assert "color: has 2x2 pixels, but depth has 1x1" in caplog.text


def test_feeds_are_the_streams_and_what_completes_them():
    assert [(f.name, f.topic) for f in spec(color="/color").feeds] == [
        ("rgbd", "/depth"),
        ("rgbd/camera_info", "/info"),
        ("rgbd/color", "/color"),
    ]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"camera_info": ""}, "camera_info"),
        ({"voxels": None}, "voxels: missing"),
        ({"type": "sensor_msgs/msg/PointCloud2"}, "is for depth images"),
        ({"voxels": {**GRID, "reduce": "mean", "features": ["r"]}}, "'r' is not one of x, y, z"),
        ({"camera_info": None, "voxels": None, "color": "/color"}, "color: needs a depth image"),
    ],
)
def test_an_incomplete_depth_stream_is_refused(keys, expected):
    with pytest.raises(RoboCacheError, match=expected):
        load_spec({"robocache": 1, "streams": {"rgbd": {k: v for k, v in {**STREAM, **keys}.items() if v is not None}}})


@pytest.mark.parametrize("half", ["rgbd", "rgbd/color"])
def test_an_image_with_an_unset_stamp_is_counted_and_leaves_those_that_wait(half):
    ingest = started(spec(color="/color"))
    deliver(ingest, "rgbd/camera_info", info(0), T0)  # intrinsics need no stamp
    deliver(ingest, "rgbd", depth(T0), T0)
    unset = depth(0) if half == "rgbd" else color(0)
    assert deliver(ingest, half, unset, T0) is Outcome.UNSTAMPED
    assert ingest.counters[half]["unstamped"] == 1
    assert deliver(ingest, "rgbd/color", color(T0), T0) is Outcome.ACCEPTED
