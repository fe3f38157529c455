"""Random streams of every kind, and the comparison of two engines that are given them."""

import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from robocache_ros.decode import CloudPayload, DepthPayload, ImagePayload, PointField
from robocache_ros.reductions import SPEC_REDUCTIONS
from robocache_ros.spec import load_spec
from test.engine.backends.gpu_fixtures import delay_uploads, emulated, host_tick  # noqa: F401 - fixtures

MS = 1_000_000
T0 = 1_760_000_000 * 10**9  # a tick: full seconds are on every grid
FIELDS = tuple(PointField(name, 4 * i, 7, 1) for i, name in enumerate(("x", "y", "z", "intensity")))
POSE = {"translation_m": [0.1, 0.2, 0.3], "rotation_xyzw": [0, 0, 0.6, 0.8]}
IMAGE = "sensor_msgs/msg/Image"


def mixed_spec(reduce="occupancy", features=(), **timeline):
    """Vectors, images of every kind, a depth stream and a cloud."""
    grid = {"origin_m": [-1, -1, -1], "size_m": 0.1, "shape": [20, 20, 20], "reduce": reduce, "extrinsic": POSE}
    streams = {
        "joints": {
            "topic": "/j",
            "type": "std_msgs/msg/Float64MultiArray",
            "dim": 7,
            "align": "linear",
            "max_gap_ms": 30,
        },
        "cloud": {
            "topic": "/c",
            "type": "sensor_msgs/msg/PointCloud2",
            "voxels": {**grid, **({"features": list(features)} if features else {})},
            "max_age_ms": 150,
        },
        "turn": {
            "topic": "/q",
            "type": "geometry_msgs/msg/QuaternionStamped",
            "field": "quaternion",
            "dim": 4,
            "align": "slerp",
        },
        "front": {"topic": "/f", "type": IMAGE, "image": {"size": [24, 32], "normalize": "imagenet"}, "max_age_ms": 80},
        "unsized": {"topic": "/r", "type": IMAGE, "align": "nearest"},
        "depth": {"topic": "/d", "type": IMAGE, "image": {"resize": "nearest", "size": [10, 10]}},
        "rgbd": {
            "topic": "/z",
            "type": IMAGE,
            "camera_info": "/i",
            "color": "/k",
            "voxels": {**grid, "reduce": "mean", "features": ["r", "g", "b", "z"]},
        },
        "jpeg": {
            "topic": "/p",
            "type": "sensor_msgs/msg/CompressedImage",
            "image": {"size": [16, 16], "resize": "area"},
        },
    }
    return load_spec({"robocache": 1, "rate_hz": 50, "delay_ms": 20, "horizon": 3, **timeline, "streams": streams})


def _image(rng, name):
    width = 60 if name == "unsized" and rng.random() < 0.1 else 64  # of another shape than those before: refused
    if name == "depth":
        return ImagePayload(rng.integers(0, 255, 40 * 30 * 2, dtype=np.uint8), "16UC1", 40, 30, 80)
    if name == "jpeg":
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)).save(file, "JPEG")
        data = np.frombuffer(file.getvalue(), np.uint8)
        return ImagePayload(data[: len(data) // (2 if rng.random() < 0.15 else 1)], "jpeg")
    data = rng.integers(0, 255, 192 * 48, dtype=np.uint8)
    cut = 100 if rng.random() < 0.1 else None  # corrupt
    return ImagePayload(data[:cut], str(rng.choice(["rgb8", "bgr8"])), width, 48, 192)


def _cloud(rng):
    points = rng.normal(size=(int(rng.integers(0, 300)), 4)).astype(np.float32)
    points[: len(points) // 10] = np.nan
    return CloudPayload(points.view(np.uint8).reshape(-1), len(points), 1, 16, 16 * len(points), FIELDS)


def _rgbd(rng):
    depth = rng.integers(0, 3000, (12, 16), dtype=np.uint16).view(np.uint8).reshape(-1)
    color = rng.integers(0, 255, 12 * 16 * 3, dtype=np.uint8)
    data = np.concatenate([depth, color[: 100 if rng.random() < 0.1 else None]])  # corrupt
    return DepthPayload(data, "16UC1", 16, 12, 32, False, (20.0, 21.0, 8.5, 6.25), "bgr8", 48, len(depth))


def mixed_messages(rng, count=300):
    """(stream, stamp, arrival, value) in order of arrival."""
    arrival = T0
    for _ in range(count):
        arrival += int(rng.integers(0, 8 * MS))
        name = str(rng.choice(["joints"] * 3 + ["turn"] * 2 + ["cloud", "front", "unsized", "depth", "jpeg", "rgbd"]))
        if name in ("joints", "turn"):
            value = rng.normal(size=7 if name == "joints" else 4).astype(np.float32)
        else:
            value = {"cloud": _cloud, "rgbd": _rgbd}.get(name, lambda rng: _image(rng, name))(rng)  # noqa: B023
        yield name, arrival - int(rng.integers(0, 30 * MS)), arrival, value


def bits(frames):
    """The contents of frames, as bytes."""
    media = {name: (tuple(t.shape), t.dtype, t.cpu().numpy().tobytes()) for name, t in frames.media.items()}
    fused = frames.fused.cpu().numpy().tobytes()
    arrays = (frames.ticks_ns, frames.valid, frames.age_ns)
    return [*(a.tobytes() for a in arrays), fused, frames.rows().numpy().tobytes(), media]


def in_buffer(engine, stream, value):
    """A payload as it is when its message is in a buffer of the engine; a vector as it is."""
    if isinstance(value, np.ndarray):
        return value
    buffer = engine.buffer(stream, value.data.size + 12)
    buffer[12 : 12 + value.data.size] = value.data
    return replace(value, data=buffer[12 : 12 + value.data.size])


def compare(engine, reference, messages, rng):
    """Feed both the same messages, at ticks asked for at random; every frame must be the same. Returns how many."""
    now, ticks, rows = T0, 0, []
    waiting = list(messages)
    for each in (engine, reference):
        each.advance(now)
    while waiting:
        now += int(rng.choice([5, 20, 20, 20, 70])) * MS
        while waiting and waiting[0][2] <= now:
            message = waiting.pop(0)
            value = in_buffer(engine, message[0], message[3]) if rng.random() < 0.7 else message[3]
            assert engine.push(*message[:3], value) is reference.push(*message)
        frames, expected = engine.advance(now), reference.advance(now)
        assert bits(frames) == bits(expected)
        ticks += len(frames)
        rows += list(expected.rows().numpy())
        if frames.window is not None:
            horizon = engine.spec.horizon
            window = np.array(([np.zeros_like(rows[0])] * horizon + rows)[-horizon:])
            assert frames.window.cpu().numpy().tobytes() == window.tobytes()
        if rng.random() < 0.02:
            rows = []
            for each in (engine, reference):
                each.reset("for the test")
                each.advance(now)
    assert {s.name: engine.lost(s.name) for s in engine.spec.streams} == {
        s.name: reference.lost(s.name) for s in engine.spec.streams
    }
    return ticks


def windowed(rng, emit):
    """Windows of every kind beside a linear stream: the spec, and 1.5 s of messages."""
    kind = {"type": "robot_msgs/msg/Touch", "field": "cells", "rate_hz": 300}
    windows = {"touch": (5, 3, ""), "force": (6, 7, "mean"), "sound": (1, 9, "rms"), "peak": (2, 4, "max")}
    streams = {
        name: {**kind, "topic": f"/{name}", "dim": dim, "align": "window", "samples": n}
        | ({"reduce": reduce} if reduce else {})
        for name, (dim, n, reduce) in windows.items()
    }
    streams["arm"] = {**kind, "topic": "/arm", "dim": 7}
    spec = load_spec({"robocache": 1, "emit": emit, "horizon": 3, "delay_ms": 30, "streams": streams})
    messages = []
    for arrival in (T0 + np.sort(rng.integers(0, 1500, 1200)) * MS).tolist():
        name = str(rng.choice(list(streams)))
        value = rng.normal(size=streams[name]["dim"]).astype(np.float32)
        messages.append((name, arrival - int(rng.integers(0, 45 * MS)), arrival, value))
    return spec, messages


@pytest.fixture(scope="session")
def mixture():
    reductions = [(name, ("intensity", "z") if kind.needs_features else ()) for name, kind in SPEC_REDUCTIONS.items()]
    return SimpleNamespace(
        reductions=reductions,
        spec=mixed_spec,
        messages=mixed_messages,
        windowed=windowed,
        compare=compare,
        bits=bits,
        t0=T0,
        ms=MS,
    )
