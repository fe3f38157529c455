"""Synthetic recordings of a robot: raw color images with texture, motion and noise, and joint states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.write import write_bag
from robocache_ros.extras import need
from robocache_ros.units import NS_PER_S
from test.fuzz.mcap_writer import McapLayout, write_mcap

START_NS = 1_760_000_000_000_000_000
HEIGHT, WIDTH, CAMERA_HZ, JOINTS_HZ, COMMAND_HZ = 480, 640, 30, 500, 50
JOINTS = [f"joint{k}" for k in range(1, 8)]
NOISES = 8  # images of noise, used in turn
IMAGE, JOINT_STATE = "sensor_msgs/msg/Image", "sensor_msgs/msg/JointState"


def camera_topic(number: int) -> str:
    """The topic of a camera."""
    return f"/camera{number}/image_raw"


def spec(cameras: int) -> dict[str, Any]:
    """A spec with a row per image, or per command if there are no cameras."""
    joints = {"type": JOINT_STATE, "names": JOINTS}
    images = {f"camera{k}": {"topic": camera_topic(k), "type": IMAGE, "align": "hold"} for k in range(cameras)}
    streams = {
        "joint_position": {"topic": "/joint_states", **joints, "align": "linear"},
        "action": {"topic": "/command", **joints, "align": "hold", "role": "action"},
    }
    return {"robocache": 1, "rate_hz": CAMERA_HZ if cameras else COMMAND_HZ, "streams": {**streams, **images}}


def write(
    path: Path, seconds: float, cameras: int, compression: str = "none", size: int | None = None, scene: int = 0
) -> Path:
    """Write a recording.

    Args:
        path: of the recording.
        seconds: its length.
        cameras: their number.
        compression: as in `write_bag`, or lz4 (of the chunks of an mcap file), or sqlite3.
        size: height and width of a part of the images; None: all of them.
        scene: a number, by which the images of recordings differ.
    """
    types = {"/joint_states": JOINT_STATE, "/command": JOINT_STATE}
    types.update({camera_topic(k): IMAGE for k in range(cameras)})
    if compression != "lz4":
        storage, compression = ("sqlite3", "none") if compression == "sqlite3" else ("mcap", compression)
        content = messages(seconds, cameras, size, scene)
        return write_bag(path, types, content, storage=storage, compression=compression)
    write_bag(path, types, messages(seconds, cameras, size, scene))  # for its metadata.yaml, which rosbags needs
    (file,) = path.glob("*.mcap")
    declared = {topic: (kind, "") for topic, kind in types.items()}
    file.write_bytes(write_mcap(declared, messages(seconds, cameras, size, scene), McapLayout(compression="lz4")))
    return path


def messages(seconds: float, cameras: int, size: int | None = None, scene: int = 0) -> Iterator[tuple[str, int, bytes]]:
    """Yield (topic, log time in ns, CDR bytes) in the order of their times."""
    typesys = need("rosbags.typesys", "bags")
    store: Any = typesys.get_typestore(typesys.Stores.LATEST)
    films = [film(scene * cameras + camera) for camera in range(cameras)]
    pictures = 0
    for step in range(int(seconds * JOINTS_HZ)):
        now_ns = START_NS + step * NS_PER_S // JOINTS_HZ
        while pictures * JOINTS_HZ <= step * CAMERA_HZ:
            stamp_ns = START_NS + pictures * NS_PER_S // CAMERA_HZ
            for camera, frames in enumerate(films):
                image = _image(store.types, stamp_ns, next(frames)[:size, :size])
                yield camera_topic(camera), now_ns + 900_000, bytes(store.serialize_cdr(image, IMAGE))
            pictures += 1
        joints = bytes(store.serialize_cdr(_joints(store.types, now_ns, step), JOINT_STATE))
        yield "/joint_states", now_ns + 1_000_000, joints
        if step % (JOINTS_HZ // COMMAND_HZ) == 0:
            yield "/command", now_ns + 1_100_000, joints


def film(camera: int) -> Iterator[NDArray[np.uint8]]:
    """Yield (H, W, 3) images of a scene that moves by three pixels from one image to the next."""
    rng = np.random.default_rng(camera)
    y, x = np.mgrid[0:HEIGHT, 0 : 2 * WIDTH].astype(np.float32)
    waves = sum(np.sin(x / rng.uniform(8, 90)) * np.cos(y / rng.uniform(8, 90)) for _ in range(6))
    tiles = rng.uniform(-25, 25, (HEIGHT // 16, WIDTH // 8, 3)).repeat(16, 0).repeat(16, 1)
    scene = np.stack([waves * rng.uniform(8, 18) + rng.uniform(80, 160) for _ in range(3)], -1) + tiles
    scene = scene.clip(0, 240).astype(np.uint8)
    noises = rng.integers(0, 7, (NOISES, HEIGHT, WIDTH, 3), dtype=np.uint8)
    number = 0
    while True:
        left = 3 * number % WIDTH
        yield scene[:, left : left + WIDTH] + noises[number % NOISES]
        number += 1


def _header(types: Any, stamp_ns: int) -> Any:
    return types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](*divmod(stamp_ns, NS_PER_S)), "base")


def _image(types: Any, stamp_ns: int, image: NDArray[np.uint8]) -> Any:
    height, width = image.shape[:2]
    return types[IMAGE](_header(types, stamp_ns), height, width, "rgb8", 0, 3 * width, image.reshape(-1))


def _joints(types: Any, stamp_ns: int, step: int) -> Any:
    values = np.sin(np.arange(len(JOINTS)) + step / JOINTS_HZ)
    return types[JOINT_STATE](_header(types, stamp_ns), JOINTS, values, values, values)
