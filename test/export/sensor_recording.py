"""A recording with cameras, depth, a fast sensor and silent topics, and the engine's output for a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.engine.frames import Frames
from robocache_ros.exporter.job import ExportResult
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.layout import Layout
from test.fuzz.messages import numbers, serialize
from test.fuzz.node_inputs import raw_image

MS = 1_000_000
START_NS = 1_700_000_000 * 10**9
ARRAY, IMAGE, TEXT = "std_msgs/msg/Float64MultiArray", "sensor_msgs/msg/Image", "std_msgs/msg/String"
CAMERAS = {"color": ("rgb8", (23, 31)), "gray": ("mono8", (9, 17)), "depth": ("16UC1", (6, 8))}
ARRAYS = ("state", "force", "command", "reward", "success")
TYPES = {**{f"/{name}": ARRAY for name in ARRAYS}, **{f"/{name}": IMAGE for name in CAMERAS}, "/task": TEXT}


def sensor_spec(*, actions: bool = True, outcomes: bool = False) -> FusionSpec:
    """The streams of the recording. The command and the depth camera may be silent: their ticks are masked.

    Args:
        actions: with the command.
        outcomes: with the streams `reward` and `success`.
    """
    array, image = {"type": ARRAY, "stamp": "receive"}, {"type": IMAGE, "align": "hold", "max_age_ms": 60}
    streams: dict[str, Any] = {
        "state": {"topic": "/state", **array, "dim": 3, "align": "linear"},
        "force": {"topic": "/force", **array, "dim": 2, "align": "window", "samples": 6},
        "color": {"topic": "/color", **image},
        "gray": {"topic": "/gray", **image},
        "depth": {"topic": "/depth", **image, "on_invalid": "mask"},
    }
    if actions:
        command = {"topic": "/command", **array, "align": "hold", "max_age_ms": 100, "on_invalid": "mask"}
        streams["arm"] = {**command, "dim": 2, "role": "action"}
    for name in ("reward", "success") if outcomes else ():
        streams[name] = {"topic": f"/{name}", **array, "dim": 1, "align": "hold", "role": name}
    return load_spec({"robocache": 1, "actions": "required" if actions else "none", "rate_hz": 50, "streams": streams})


def sensor_recording(path: Path, seed: int, seconds: float = 1.0) -> Path:
    """State at 100 Hz, force at 250 Hz, the others at 25 Hz; command and depth are silent from 0.4 s to 0.7 s.

    The task is `task <seed>`, which succeeds if the seed is even.
    """
    random = np.random.default_rng(seed)
    messages = [("/task", START_NS, serialize(TEXT, {"data": f"task {seed}"}))]
    for at_ms in range(0, int(1000 * seconds), 2):
        stamp, silent = START_NS + at_ms * MS, 400 <= at_ms < 700
        if at_ms % 10 == 0:
            messages.append(("/state", stamp, numbers(*random.normal(size=3))))
        if at_ms % 4 == 0:
            messages.append(("/force", stamp, numbers(*random.normal(size=2))))
        if at_ms % 40 == 0:
            messages.append(("/reward", stamp, numbers(*random.normal(size=1))))
            messages.append(("/success", stamp, numbers(1.0 - seed % 2)))
            messages += [(f"/{name}", stamp, _image(stamp, name, random)) for name in CAMERAS]
            messages.append(("/command", stamp, numbers(*random.uniform(-3, 5, size=2))))
            if silent:
                del messages[-2:]  # the command and the last camera, depth
    return write_bag(path, TYPES, messages)


def _image(stamp_ns: int, name: str, random: np.random.Generator) -> bytes:
    encoding, (height, width) = CAMERAS[name]
    channels, dtype = (3 if encoding == "rgb8" else 1), (np.uint16 if encoding == "16UC1" else np.uint8)
    pixels = random.integers(0, np.iinfo(dtype).max, (height, width, channels), dtype)
    return raw_image(stamp_ns, height, width, encoding, pixels[0].nbytes, pixels.tobytes(), name)


DEPTH_SIZE = (17, 30)  # an odd side, and rows that need padding


def depth_spec(unit: str) -> FusionSpec:
    depth = {"topic": "/depth", "type": IMAGE, **({"unit": unit} if unit else {})}
    joint = {"topic": "/x", "type": "std_msgs/msg/Float64", "align": "hold"}
    return load_spec({"robocache": 1, "actions": "none", "streams": {"depth": depth, "x": joint}})


def depth_recording(folder: Path, encoding: str, seed: int, size: tuple[int, int] = DEPTH_SIZE) -> Path:
    """Half a second of a depth camera at 30 Hz, with holes in its images."""
    rng = np.random.default_rng(seed)
    messages = []
    for k in range(16):
        at = START_NS + k * 33_333_333
        metres = rng.uniform(0.3, 4.0, size) * (rng.random(size) > 0.1)
        pixels = (metres * 1000).astype("<u2") if encoding == "16UC1" else metres.astype("<f4")
        messages.append(("/depth", at, raw_image(at, *size, encoding, pixels.strides[0], pixels.tobytes())))
        messages.append(("/x", at, b"\0\1\0\0" + np.float64(k).tobytes()))
    return write_bag(folder / f"bag{seed}", {"/depth": IMAGE, "/x": "std_msgs/msg/Float64"}, messages)


# The output of the engine for a recording, as datasets store it: what readers must return.

Rows = dict[str, NDArray]


def engine_rows(recording: Path, spec: FusionSpec) -> Rows:
    """All ticks of a recording: tick_ns, valid, age_ns, stamp_ns, and each stream by name.

    Vectors are (T, dim), windows (T, samples, dim) with `mask.<stream>` and `sample_age_ms.<stream>`, images
    (T, H, W, C) with three channels if they are 8-bit, voxels as in the frames. Without a value they are zero.
    """
    with Bag(recording) as bag:
        parts = [_rows(frames, Layout(spec)) for frames in BagRun(bag, spec).frames()]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def engine_episodes(result: ExportResult, spec: FusionSpec) -> list[Rows]:
    """The rows of each episode of an export, computed again from its recordings."""
    episodes = []
    for recording in result.recordings:
        rows = engine_rows(recording.bag, spec)
        for episode in recording.episodes:
            places = np.searchsorted(rows["tick_ns"], recording.ticks_ns[episode.start : episode.stop])
            episodes.append({name: values[places] for name, values in rows.items()})
    return episodes


def _rows(frames: Frames, layout: Layout) -> Rows:
    latency = np.array([stream.latency_ns for stream in layout.spec.streams])
    stamps = np.where(frames.valid > 0, frames.stamps_ns + latency, 0)
    rows = {"tick_ns": frames.ticks_ns, "valid": frames.valid, "age_ns": frames.age_ns, "stamp_ns": stamps}
    fused = frames.fused.numpy()
    for stream in layout.spec.vectors:
        rows[stream.name] = fused[:, layout.slots[stream.name]].reshape(len(fused), *stream.shape)
        if stream.rows:
            ages = frames.sample_age_ms[:, layout.sample_ages[stream.name]]
            rows[f"sample_age_ms.{stream.name}"], rows[f"mask.{stream.name}"] = ages, ages >= 0
    for stream in layout.spec.media:
        values = frames.media[stream.name].numpy()
        if stream.kind == "image":
            values = np.moveaxis(values, 1, -1)
            if values.dtype == np.uint8:
                values = np.broadcast_to(values, (*values.shape[:3], 3))
        rows[stream.name] = values
    return rows
