"""A small recording with gray and odd-sized cameras, depth, a fast sensor, and topics that are silent for a while."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rosbags.typesys import Stores, get_typestore

from robocache_ros.bags.write import write_bag
from robocache_ros.spec import FusionSpec, load_spec

MS = 1_000_000
START_NS = 1_700_000_000 * 10**9
STORE = get_typestore(Stores.LATEST)
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
    text = STORE.types[TEXT](f"task {seed}")
    messages = [("/task", START_NS, bytes(STORE.serialize_cdr(text, TEXT)))]
    for at_ms in range(0, int(1000 * seconds), 2):
        stamp, silent = START_NS + at_ms * MS, 400 <= at_ms < 700
        if at_ms % 10 == 0:
            messages.append(("/state", stamp, _array(random.normal(size=3))))
        if at_ms % 4 == 0:
            messages.append(("/force", stamp, _array(random.normal(size=2))))
        if at_ms % 40 == 0:
            messages.append(("/reward", stamp, _array(random.normal(size=1))))
            messages.append(("/success", stamp, _array(np.array([1.0 - seed % 2]))))
            messages += [(f"/{name}", stamp, _image(stamp, name, random)) for name in CAMERAS]
            messages.append(("/command", stamp, _array(random.uniform(-3, 5, size=2))))
            if silent:
                del messages[-2:]  # the command and the last camera, depth
    return write_bag(path, TYPES, messages)


def _array(values: np.ndarray) -> bytes:
    types = STORE.types
    layout = types["std_msgs/msg/MultiArrayLayout"]([], 0)
    return bytes(STORE.serialize_cdr(types[ARRAY](layout, values), ARRAY))


def _image(stamp_ns: int, name: str, random: np.random.Generator) -> bytes:
    types, (encoding, (height, width)) = STORE.types, CAMERAS[name]
    channels, dtype = (3 if encoding == "rgb8" else 1), (np.uint16 if encoding == "16UC1" else np.uint8)
    pixels = random.integers(0, np.iinfo(dtype).max, (height, width, channels), dtype)
    header = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](*divmod(stamp_ns, 10**9)), name)
    data, step = pixels.reshape(-1).view(np.uint8), pixels[0].nbytes
    return bytes(STORE.serialize_cdr(types[IMAGE](header, height, width, encoding, 0, step, data), IMAGE))
