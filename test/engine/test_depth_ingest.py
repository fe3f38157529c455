"""Depth images through Ingest: what is paired, when, and the result."""

import numpy as np
import pytest

from robocache_ros.engine import FusionEngine, Ingest, Outcome
from robocache_ros.engine.ingest import WAITING
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from test.fuzz.messages import header, serialize

MS = 1_000_000
T0 = 1_760_000_000 * 10**9
GRID = {"origin_m": [-1, -1, 0], "size_m": 0.5, "shape": [4, 4, 4]}
STREAM = {"topic": "/depth", "type": "sensor_msgs/msg/Image", "camera_info": "/info", "voxels": GRID}


def spec(**keys):
    stream = {**STREAM, **keys}
    return load_spec({"robocache": 1, "rate_hz": 50, "delay_ms": 40, "streams": {"rgbd": stream}})


def image(stamp_ns, pixels, encoding):
    height, width = pixels.shape[:2]
    shape = {"height": height, "width": width, "encoding": encoding, "step": pixels.nbytes // height}
    return serialize("sensor_msgs/msg/Image", {"header": header(stamp_ns), **shape, "data": pixels.tobytes()})


def depth(stamp_ns):
    return image(stamp_ns, np.full((1, 1), 1250, np.uint16), "16UC1")


def color(stamp_ns, shape=(1, 1)):
    return image(stamp_ns, np.full((*shape, 3), (10, 20, 30), np.uint8), "rgb8")


def info(stamp_ns):
    camera = {"height": 1, "width": 1, "k": [100.0, 0, 0, 0, 100.0, 0, 0, 0, 1]}
    return serialize("sensor_msgs/msg/CameraInfo", {"header": header(stamp_ns), **camera})


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
    assert ingest.serialized(*first, T0) is Outcome.WAITING
    assert ingest.serialized(*second, T0 + MS) is Outcome.ACCEPTED
    frames = ingest.engine.advance(T0 + 40 * MS)
    assert frames.media["rgbd"][0].nonzero().tolist() == [[2, 2, 2]]  # (0, 0, 1.25) m
    assert frames.valid.tolist() == [[1]]


def test_a_pair_arrives_when_its_later_half_does():
    ingest = started(spec(color="/color"))
    ingest.serialized("rgbd/camera_info", info(T0), T0)
    ingest.serialized("rgbd", depth(T0), T0)
    ingest.serialized("rgbd/color", color(T0), T0 + 41 * MS)
    assert ingest.engine.advance(T0 + 41 * MS).valid.tolist() == [[0]]  # after the deadline of its tick
    assert ingest.engine.advance(T0 + 60 * MS).valid.tolist() == [[1]]


def test_depth_without_camera_info_is_dropped_and_counted_and_said_once(caplog):
    ingest = started(spec(color="/color"))
    for i in range(WAITING + 3):
        assert ingest.serialized("rgbd", depth(T0 + i), T0 + i) is Outcome.WAITING
    assert ingest.counters["rgbd"]["unpaired"] == ingest.counters["rgbd"]["unpaired:camera_info"] == 3
    assert caplog.messages == ["rgbd: a depth image is dropped: no message on /info matches it"]


def test_colour_of_another_size_is_refused_with_the_way_out(caplog):
    ingest = started(spec(color="/color"))
    ingest.serialized("rgbd/camera_info", info(T0), T0)
    ingest.serialized("rgbd", depth(T0), T0)
    assert ingest.serialized("rgbd/color", color(T0, (2, 2)), T0) is Outcome.DROPPED
    assert ingest.counters["rgbd"]["dropped:color_size"] == 1
    assert "color: has 2x2 pixels, but depth has 1x1" in caplog.text


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
    ingest.serialized("rgbd/camera_info", info(0), T0)  # intrinsics need no stamp
    ingest.serialized("rgbd", depth(T0), T0)
    unset = depth(0) if half == "rgbd" else color(0)
    assert ingest.serialized(half, unset, T0) is Outcome.UNSTAMPED
    assert ingest.counters[half]["unstamped"] == 1
    assert ingest.serialized("rgbd/color", color(T0), T0) is Outcome.ACCEPTED
