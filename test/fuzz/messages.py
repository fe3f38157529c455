"""Valid messages of every supported kind, and damaged ones: each must become a sample or be refused in one line."""

from __future__ import annotations

import io
import logging
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros import ops
from robocache_ros.decode import CloudPayload, Decoder, ImagePayload, decode_compressed, make_decoder
from robocache_ros.decode.definitions import COMMON, Array, Primitive, Sequence, Struct, Text, Type, message_type
from robocache_ros.decode.transforms import read_transforms
from robocache_ros.engine.backends.media import borrow
from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.spec import StreamSpec, load_spec

GRID = {"origin_m": [-1, -1, -1], "size_m": 0.5, "shape": [4, 4, 4]}
JOINTS = ("a", "b", "c")


@dataclass(frozen=True)
class Seed:
    """A stream, and a valid message of it in both byte orders."""

    stream: StreamSpec
    messages: tuple[bytes, ...]


def serialize(
    name: str, values: Mapping[str, Any] | None = None, order: str = "<", definitions: Mapping[str, str] | None = None
) -> bytes:
    """CDR bytes of a message; what `values` leaves out is 0, empty or, in sequences, absent."""
    out = bytearray(b"\0\1\0\0" if order == "<" else b"\0\0\0\0")
    _write(message_type(name, definitions or {}), values or {}, out, order)
    return bytes(out)


def header(stamp_ns: int, frame: str = "") -> dict[str, Any]:
    """Values of a std_msgs/msg/Header."""
    seconds, nanoseconds = divmod(stamp_ns, 10**9)
    return {"stamp": {"sec": seconds, "nanosec": nanoseconds}, "frame_id": frame}


def numbers(*values: float) -> bytes:
    """A std_msgs/msg/Float64MultiArray in CDR."""
    return b"\0\1\0\0" + struct.pack(f"<III4x{len(values)}d", 0, 0, len(values), *values)


def pose(stamp_ns: int, x: float = 0.0) -> bytes:
    """A geometry_msgs/msg/PoseStamped in CDR, of no frame and identity orientation."""
    return b"\0\1\0\0" + struct.pack("<iII4x7d", *divmod(stamp_ns, 10**9), 1, x, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)


def _write(t: Type, value: Any, out: bytearray, order: str) -> None:
    if isinstance(t, Struct):
        for name, field in t.fields:
            _write(field, value.get(name) if isinstance(value, Mapping) else None, out, order)
    elif isinstance(t, Primitive):
        out += bytes(-(len(out) - 4) % t.size) + struct.pack(order + t.code, value or 0)
    elif isinstance(t, Text):
        raw = (value or "").encode() + b"\0"
        _write_count(len(raw), out, order)
        out += raw
    elif isinstance(t, Array):
        for item in value or [None] * t.length:
            _write(t.element, item, out, order)
    elif isinstance(t, Sequence):
        _write_count(len(value or ()), out, order)
        if isinstance(value, bytes):
            out += value
        else:
            for item in value or ():
                _write(t.element, item, out, order)


def _write_count(count: int, out: bytearray, order: str) -> None:
    out += bytes(-(len(out) - 4) % 4) + struct.pack(f"{order}I", count)


def seeds() -> list[Seed]:
    """Every way in which a message becomes a sample."""
    header = {"stamp": {"sec": 1_760_000_000, "nanosec": 5}, "frame_id": "base"}
    joints = {"header": header, "name": [*JOINTS, "d"], "position": [0.1, 0.2, 0.3, 0.4]}
    point = {"positions": [1.0, 2.0], "velocities": [3.0, 4.0]}
    path = {"header": header, "joint_names": JOINTS, "points": [point, point]}
    area = {"header": header, "polygon": {"points": [{}, {}]}}
    camera = {"header": header, "height": 8, "width": 12, "k": [9.0, 0, 6, 0, 9, 4, 0, 0, 1]}
    turned = {"header": header, "pose": {"orientation": {"w": 1.0}}}
    every = [
        _seed("sensor_msgs/msg/JointState", joints, names=JOINTS),
        _seed("std_msgs/msg/Float64MultiArray", {"data": [1.0, 2.0, 3.0]}, dim=3),
        _seed("std_msgs/msg/Bool", {"data": 1}),
        _seed("geometry_msgs/msg/PoseStamped", turned, field="pose.orientation", align="slerp"),
        _seed("sensor_msgs/msg/Imu", {"header": header}, field="angular_velocity"),
        _seed("nav_msgs/msg/Odometry", {"header": header}, field="pose", dim=43),
        _seed("sensor_msgs/msg/CameraInfo", camera, field="k", dim=9),
        _seed("trajectory_msgs/msg/JointTrajectory", path, field="points[1].positions", dim=2),
        _seed("geometry_msgs/msg/PolygonStamped", area, field="polygon.points", dim=6),
        *_images(header),
        *_clouds(header),
    ]
    depth = {"topic": "/d", "type": "sensor_msgs/msg/Image", "camera_info": "/i", "voxels": GRID}
    (info,) = load_spec({"robocache": 1, "streams": {"d": depth}}).stream("d").companions
    return [*every, Seed(info, tuple(serialize(info.type, camera, order) for order in "<>"))]


def transforms() -> bytes:
    """A message of /tf_static."""
    one = {"header": {"frame_id": "base"}, "child_frame_id": "sensor", "transform": {"rotation": {"w": 1.0}}}
    return serialize("tf2_msgs/msg/TFMessage", {"transforms": [one, one]})


def _seed(kind: str, values: Mapping[str, Any], **keys: Any) -> Seed:
    if "header" not in values:
        keys["stamp"] = "receive"
    keys = {name: list(value) if isinstance(value, tuple) else value for name, value in keys.items()}
    stream = load_spec({"robocache": 1, "streams": {"s": {"topic": "/t", "type": kind, **keys}}}).stream("s")
    return Seed(stream, tuple(serialize(kind, values, order) for order in "<>"))


def _images(header: Any) -> list[Seed]:
    shape = {"header": header, "height": 8, "width": 12, "data": bytes(range(256)) * 3}
    raw = (("rgb8", 36), ("mono16", 24), ("32FC1", 48), ("nv12", 12), ("bayer_rggb8", 12))
    kind, packed = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
    return [
        *(_seed(kind, {**shape, "encoding": name, "step": step}, image={"size": [4, 6]}) for name, step in raw),
        *(_seed(packed, {"header": header, "format": text, "data": data}) for text, data in _files()),
    ]


def _files() -> list[tuple[str, bytes]]:
    pillow = need("PIL.Image", "bags")
    grey = np.arange(96, dtype=np.uint8).reshape(8, 12)

    def file(pixels: Any, kind: str, **options: Any) -> bytes:
        out = io.BytesIO()
        pillow.fromarray(pixels).save(out, kind, **options)
        return out.getvalue()

    deep = file(grey.astype(np.uint16) * 100, "png")
    progressive = file(np.stack([grey] * 3, -1), "jpeg", progressive=True)
    scan = progressive[progressive.rindex(b"\xff\xda") : -2]
    large = file(np.zeros((2000, 3000), np.uint8), "png")
    return [
        ("jpeg", file(np.stack([grey, grey.T.reshape(8, 12), grey], -1), "jpeg")),
        ("rgb8; jpeg compressed bgr8", progressive),
        ("jpeg", progressive[:-2] + scan * 500 + b"\xff\xd9"),
        ("png", file(grey, "png")),
        ("png", large[:16] + struct.pack(">II", 60_000, 60_000) + large[24:]),
        ("16UC1; png compressed", deep),
        ("16UC1; compressedDepth png", bytes(12) + deep),
        ("32FC1; compressedDepth png", struct.pack("<iff", 0, 20.0, 0.5) + deep),
    ]


def _clouds(header: Any) -> list[Seed]:
    fields = [{"name": name, "offset": 4 * i, "datatype": 7, "count": 1} for i, name in enumerate("xyz")]
    cloud = {"header": header, "height": 2, "width": 5, "fields": fields, "point_step": 16, "row_step": 80}
    cloud["data"] = np.linspace(-1, 1, 40, dtype=np.float32).tobytes()
    grids = (GRID, {**GRID, "reduce": "mean", "features": ["x"]})
    return [_seed("sensor_msgs/msg/PointCloud2", cloud, voxels=grid) for grid in grids]


# Damaged messages: each must become a sample or be refused in one line, soon and with little memory.


WORDS = (0, 1, 2, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFF8)
SHOWN = 10  # exceptions that are spelt out
TEXT_LIMIT = 200


def run(count: int, seed: int = 0) -> dict[str, Any]:
    """Decode damaged messages of every supported kind, up to the tensor that a stream requires.

    Returns:
        messages, accepted, refused (by cause), seconds, slowest_ms (of the processor) and slowest (its kind),
        memory_mib (peak above the start), unfit_texts (errors that are not one short printable line) and exceptions
        (of any other class).
    """
    rng = random.Random(seed)
    targets = [*_targets(), ("/tf_static", [transforms()], read_transforms), *_definitions()]
    logging.getLogger("PIL").setLevel(logging.ERROR)
    for _, messages, accept in targets:  # one-time imports and allocations are not part of the cost of a message
        for message in messages:
            _error(accept, message)
    Path("/proc/self/clear_refs").write_text("5")  # which begins the peak of the memory anew
    before_kib, started = _status_kib("VmRSS"), time.perf_counter()
    refused: Counter[str] = Counter()
    exceptions: Counter[str] = Counter()
    accepted, unfit, slowest = 0, 0, (0.0, "")
    for _ in range(count):
        name, messages, accept = targets[rng.randrange(len(targets))]
        message = damaged(rng.choice(messages), rng)
        began = time.process_time()
        error = _error(accept, message)
        slowest = max(slowest, (time.process_time() - began, name))
        accepted += error is None
        if isinstance(error, RoboCacheError):
            refused[getattr(error, "cause", "other")] += 1
            unfit += len(str(error)) >= TEXT_LIMIT or not str(error).isprintable()
        elif error is not None:
            exceptions[f"{name}: {error!r}"[:TEXT_LIMIT]] += 1
    return {
        "messages": count,
        "accepted": accepted,
        "refused": dict(refused.most_common()),
        "seconds": round(time.perf_counter() - started, 1),
        "slowest_ms": round(1e3 * slowest[0], 1),
        "slowest": slowest[1],
        "memory_mib": round((_status_kib("VmHWM") - before_kib) / 1024, 1),
        "unfit_texts": unfit,
        "exceptions": dict(exceptions.most_common(SHOWN)),
    }


def damaged(message: bytes, rng: random.Random) -> bytes:
    """The message, altered in one of seven ways."""
    data, kind = bytearray(message), rng.randrange(7)
    if kind == 0:
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 1:
        place = rng.randrange(max(len(data) // 4, 1)) * 4
        data[place : place + 4] = rng.choice(WORDS).to_bytes(4, rng.choice(("little", "big")))
    elif kind == 2:
        del data[rng.randrange(len(data)) :]
    elif kind == 3:
        data[4:] = rng.randbytes(rng.randrange(200))
    elif kind == 4:
        start, stop = sorted(rng.randrange(len(data)) for _ in range(2))
        data[rng.randrange(len(data)) : 0] = data[start:stop] * rng.randint(1, 20)
    elif kind == 5:
        place = rng.randrange(len(data))
        data[place : place + rng.randint(1, 40)] = b"\n[ERROR] \x1b[31mforged\xe2\x80\xae"[: rng.randint(1, 20)]
    elif len(data) > 1:
        data[1] ^= 1  # the byte order
    return bytes(data)


def _targets() -> list[tuple[str, list[bytes], Callable[[bytes], Any]]]:
    targets: list[tuple[str, list[bytes], Callable[[bytes], Any]]] = []
    for one in seeds():
        messages = list(one.messages)
        if one.stream.names:
            names = [*one.stream.names, *(f"joint_{i}" for i in range(900))]
            messages.append(serialize(one.stream.type, {"name": names, "position": [0.0] * len(names)}))
        targets.append((f"{one.stream.type}.{one.stream.paths[0]}", messages, _acceptor(one.stream)))
    return targets


def _acceptor(stream: StreamSpec) -> Callable[[bytes], Any]:
    decoder: Decoder = make_decoder(stream)

    def accept(data: bytes) -> Any:
        value = decoder.decode_cdr(data).value
        if isinstance(value, ImagePayload):
            image = decode_compressed(value)
            layout = {name: getattr(image, name) for name in ("encoding", "width", "height", "step", "big_endian")}
            return ops.convert_image(borrow(image.data), **layout, size=(4, 6))
        if isinstance(value, CloudPayload):
            grid = stream.voxels
            assert grid
            names = ("width", "height", "point_step", "row_step", "fields", "big_endian")
            keys: dict[str, Any] = {name: getattr(value, name) for name in names}
            keys |= {"grid_min": grid.origin_m, "voxel_size": grid.size_m, "grid_size": grid.shape}
            return ops.voxelize_cloud_bytes(borrow(value.data), **keys, mode=grid.reduce, features=grid.features)
        return value

    return accept


def _definitions() -> list[tuple[str, list[bytes], Callable[[bytes], Any]]]:
    texts = [text.encode() for text in COMMON.values()]
    nested = "=" * 80 + "\nMSG: a/B\nC[64] c\n" + "=" * 80 + "\nMSG: a/C\nfloat64 x\nuint8[] y\nstring<=5 z"
    texts.append(f"B[64] b\n{nested}".encode())
    return [("definition", texts, lambda data: message_type("a/msg/A", {"a/msg/A": data.decode("utf-8", "replace")}))]


def _error(accept: Callable[[bytes], Any], message: bytes) -> Exception | None:
    """The error for a message, without the objects of its traceback."""
    try:
        accept(message)
    except Exception as error:  # what this is all about
        return error.with_traceback(None)
    return None


def _status_kib(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
