"""Random streams of every kind, and the comparison of two engines that are given them."""

import contextlib
import ctypes
import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robocache_ros.decode import CloudPayload, DepthPayload, ImagePayload, PointField
from robocache_ros.engine import FusionEngine, offline
from robocache_ros.reductions import SPEC_REDUCTIONS
from robocache_ros.spec import load_spec

MS = 1_000_000
T0 = 1_760_000_000 * 10**9  # a tick: full seconds are on every grid
FIELDS = tuple(PointField(name, 4 * i, 7, 1) for i, name in enumerate(("x", "y", "z", "intensity")))
POSE = {"translation_m": [0.1, 0.2, 0.3], "rotation_xyzw": [0, 0, 0.6, 0.8]}
IMAGE = "sensor_msgs/msg/Image"


def at(ms):
    return T0 + ms * MS


def mixed_spec(reduce="occupancy", features=(), **timeline):
    """Vectors, images of every kind, a depth stream and a cloud."""
    grid = {"origin_m": [-1, -1, -1], "size_m": 0.1, "shape": [20, 20, 20], "reduce": reduce, "extrinsic": POSE}
    colors = {**grid, "reduce": "mean", "features": ["r", "g", "b", "z"]}
    array, turn = "std_msgs/msg/Float64MultiArray", "geometry_msgs/msg/QuaternionStamped"
    cloud, jpeg = "sensor_msgs/msg/PointCloud2", "sensor_msgs/msg/CompressedImage"
    grid |= {"features": list(features)} if features else {}
    streams = {
        "joints": {"topic": "/j", "type": array, "dim": 7, "align": "linear", "max_gap_ms": 30},
        "cloud": {"topic": "/c", "type": cloud, "voxels": grid, "max_age_ms": 150},
        "turn": {"topic": "/q", "type": turn, "field": "quaternion", "dim": 4, "align": "slerp"},
        "front": {"topic": "/f", "type": IMAGE, "image": {"size": [24, 32], "normalize": "imagenet"}, "max_age_ms": 80},
        "unsized": {"topic": "/r", "type": IMAGE, "align": "nearest"},
        "depth": {"topic": "/d", "type": IMAGE, "image": {"resize": "nearest", "size": [10, 10]}},
        "rgbd": {"topic": "/z", "type": IMAGE, "camera_info": "/i", "color": "/k", "voxels": colors},
        "jpeg": {"topic": "/p", "type": jpeg, "image": {"size": [16, 16], "resize": "area"}},
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
    for stream in engine.spec.streams:
        assert engine.lost(stream.name) == reference.lost(stream.name), stream.name
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
    parts = {"spec": mixed_spec, "messages": mixed_messages, "windowed": windowed, "compare": compare, "bits": bits}
    return SimpleNamespace(reductions=reductions, **parts, t0=T0, ms=MS)


@pytest.fixture(scope="session")
def host_tick(host_library):
    """A launch of the tick as host code, by its name and the constants that it is compiled with."""
    text = Path(__file__).with_name("host_tick.cpp").read_text()
    arguments = {
        "tick_row": (*(ctypes.c_void_p,) * 3, ctypes.c_int, ctypes.c_int),
        "tick_image": (ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
        "tick_cloud": (ctypes.c_void_p,),
    }

    def build(name, *defines):
        launch = getattr(host_library(text, defines), name)
        launch.argtypes = arguments[name]
        return launch

    return build


class EmulatedGraph:
    """A CUDA graph of host launches: those made while it is captured run at each replay."""

    captured = None  # the launches of the graph that is being captured

    def capture_begin(self, **_options):
        self._launches = EmulatedGraph.captured = []

    def capture_end(self):
        EmulatedGraph.captured = None

    def replay(self):
        for launch in self._launches:
            launch()


@pytest.fixture
def emulated(monkeypatch, host_tick):
    """FusionEngine on the GPU backend, with memory, copies and launches of the host."""
    from robocache_ros.engine import engine
    from robocache_ros.engine.backends import gpu
    from robocache_ros.ops import tick
    from robocache_ros.ops.cuda import kernels as memory

    def kernel(_file, name, _parameters, _device, defines=()):
        values = dict(define.split("=", 1) for define in defines)

        def launch(grid, _block, _shared, *arguments):
            assert min(grid) >= 1
            if EmulatedGraph.captured is not None:
                EmulatedGraph.captured.append(lambda: run(*arguments))
            else:
                run(*arguments)

        def run(*arguments):
            if name == "tick_row":
                host_tick(name, "ROW")(*arguments)
            elif name == "tick_image":
                host_tick(name, "IMAGE")(*arguments, int(values["FAMILY"]), int(values["RESIZE"]))
            elif name == "begin_cloud":
                host_tick("tick_cloud", *defines)(*arguments)

        return SimpleNamespace(launch=launch)

    def nothing(*_arguments, **_keywords):
        return contextlib.nullcontext()

    calls = dict.fromkeys(("wait_stream", "record", "synchronize", "wait_event"), nothing)
    idle = SimpleNamespace(query=lambda: True, cuda_stream=0, **calls)
    processors = SimpleNamespace(multi_processor_count=8)
    for module in (memory, tick, gpu):
        monkeypatch.setattr(module, "pinned", partial(torch.zeros, dtype=torch.uint8))
    for module in (tick, gpu):
        monkeypatch.setattr(module, "copy_async", lambda to, source, size, _stream: ctypes.memmove(to, source, size))
    for name in ("record_event", "wait_event"):
        monkeypatch.setattr(gpu, name, nothing)
    monkeypatch.setattr(gpu, "raw_stream", lambda _device: 0)
    monkeypatch.setattr(gpu, "is_current", lambda _device: True)
    for name in ("_event", "_stream"):
        monkeypatch.setattr(memory, name, lambda *_: idle)
    monkeypatch.setattr(tick, "kernel", kernel)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", EmulatedGraph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: idle)
    for name in ("stream", "synchronize", "device"):
        monkeypatch.setattr(torch.cuda, name, nothing)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: processors)

    def make(layout, capacities, _device, _unbounded, options):
        return gpu.GpuBackend(layout, capacities, torch.device("cpu"), options)

    def build(spec, **options):
        with monkeypatch.context() as patched:
            patched.setattr(engine, "make_backend", make)
            return FusionEngine(spec, "cuda", **options)

    return build


def delay_uploads(engine):
    """Keep the copies of an engine on a real GPU waiting for half a second, in which a busy host fills the ring."""
    with torch.cuda.stream(engine._backend._uploads.stream):
        torch.cuda._sleep(1_000_000_000)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    """FusionEngine on the GPU backend: without a GPU, and on one."""
    if request.param == "emulated":
        return request.getfixturevalue("emulated")
    return lambda spec, **options: FusionEngine(spec, "cuda", **options)


def same_live_as_recorded(live, recorded, messages, first_ns, last_ns, until_ns=None, **options):
    """Ticks made live have the bits of the deployed recording; gives the frames of both that have the same ticks."""
    frames = list(offline.run(messages, recorded, first_ns, last_ns, visibility="deployed", **options))
    expected = {int(part.ticks_ns[k]): part[k : k + 1] for part in frames for k in range(len(part))}
    live.engine.advance(T0)
    made = []
    for name, arrival, data in messages:
        while len(frames := live.engine.advance(arrival - 1, limit=1)):
            made.append(frames)
        live.serialized(name, data, arrival)
    while until_ns and len(frames := live.engine.advance(until_ns, limit=1)):
        made.append(frames)
    made = [frames for frames in made if int(frames.ticks_ns[0]) in expected]
    for frames in made:
        other = expected[int(frames.ticks_ns[0])]
        assert frames.rows().numpy().tobytes() == other.rows().numpy().tobytes()
        assert all(torch.equal(tensor, other.media[name]) for name, tensor in frames.media.items())
    return made
