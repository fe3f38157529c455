"""A robot of four joints, a pose and a camera, and its recordings, with commands or with a planted mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.write import write_bag
from test.fuzz.messages import header, serialize

START_NS = 1_700_000_000_000_000_000
LENGTH_NS = 3_000_000_000
JOINTS = ["shoulder", "elbow", "wrist", "gripper"]
JOINT, POSE, IMAGE = "sensor_msgs/msg/JointState", "geometry_msgs/msg/PoseStamped", "sensor_msgs/msg/Image"
ARRAY = "std_msgs/msg/Float64MultiArray"
TYPES = {"/joints": JOINT, "/pose": POSE, "/camera": IMAGE, "/arm": ARRAY, "/hand": ARRAY}
SIZE = 12, 16
SPEC: dict[str, Any] = {
    "robocache": 1,
    "rate_hz": 50,
    "horizon": 4,
    "delay_ms": 60,
    "streams": {
        "joints": {"topic": "/joints", "type": JOINT, "names": JOINTS, "unit": "rad", "max_gap_ms": 40},
        "position": {"topic": "/pose", "type": POSE, "field": "pose.position", "align": "hold"},
        "orientation": {"topic": "/pose", "type": POSE, "field": "pose.orientation", "align": "hold"},
        "front": {"topic": "/camera", "type": IMAGE, "image": {"size": list(SIZE)}, "max_age_ms": 150},
        "arm": {"topic": "/arm", "type": ARRAY, "dim": 3, "align": "hold", "role": "action", "unit": "rad"},
        "hand": {"topic": "/hand", "type": ARRAY, "dim": 1, "align": "hold", "role": "action"},
    },
    "dataset": {"action_offset": 1, "media": "image", "formats": ["lerobot"], "task": "reach"},
    "run": {"replan_every": 10},
}
Values = NDArray[np.float64]


def same(values: Any) -> Any:
    """No mistake."""
    return values


@dataclass(frozen=True)
class Mistakes:
    """What is wrong with a recording.

    Attributes:
        joints, position, orientation, image: change the values of a message.
        late_ns: the joints arrive this much later.
        stale_ns: the stamps of the pose are this much older.
        silent: share of the time in which the camera is silent.
        without: a topic that is missing.
    """

    joints: Callable[[Values], Values] = same
    position: Callable[[Values], Values] = same
    orientation: Callable[[Values], Values] = same
    image: Callable[[NDArray[np.uint8]], NDArray[np.uint8]] = same
    late_ns: int = 0
    stale_ns: int = 0
    silent: float = 0.0
    without: str = ""


SWAPPED = Mistakes(image=lambda pixels: pixels[..., ::-1].copy())  # red and blue


def joints_at(seconds: float) -> Values:
    """All within their limits, and each in another range; the gripper closes half-way."""
    waves = [0.5 + 0.3 * np.sin(2 * seconds), -1.2 + 0.2 * np.cos(3 * seconds), 2.0 + 0.4 * np.sin(4 * seconds)]
    return np.array([*waves, 1.7 / (1 + np.exp(20 * (seconds - 2.2)))])


def messages(seed: int, wrong: Mistakes) -> Iterator[tuple[str, int, bytes]]:
    """In the order of their stamps."""
    random = np.random.default_rng(seed)
    phase = random.uniform(0, 0.3)
    for at_ns in range(0, LENGTH_NS, 10_000_000):
        stamp_ns, seconds = START_NS + at_ns, at_ns / 1e9 + phase
        joints = {"header": header(stamp_ns), "name": JOINTS, "position": wrong.joints(joints_at(seconds)).tolist()}
        yield "/joints", stamp_ns + 2_000_000 + wrong.late_ns, serialize(JOINT, joints)
        if at_ns % 20_000_000 == 0:
            position = wrong.position(np.array([0.3, 0.0, 0.2]) + 0.1 * np.sin(seconds * np.array([2, 3, 4])))
            turned = np.array([0.1, 0.3, 0.5, 0.8]) + 0.03 * np.sin(seconds * np.array([2, 3, 4, 5]))
            turned = wrong.orientation(turned / np.linalg.norm(turned))
            pose = {"position": dict(zip("xyz", position, strict=True))}
            pose["orientation"] = dict(zip("xyzw", turned, strict=True))
            stamped = {"header": header(stamp_ns - wrong.stale_ns), "pose": pose}
            yield "/pose", stamp_ns + 2_000_000, serialize(POSE, stamped)
            command = joints_at(seconds + 0.1).tolist()
            yield "/arm", stamp_ns + 1_000_000, serialize(ARRAY, {"data": command[:3]})
            yield "/hand", stamp_ns + 1_000_000, serialize(ARRAY, {"data": command[3:]})
        if at_ns % 100_000_000 == 0 and at_ns >= wrong.silent * LENGTH_NS:
            pixels = random.integers(0, 60, (*SIZE, 3)) + np.array([180, 100, 30])
            pixels = wrong.image(pixels.astype(np.uint8))
            height, width = pixels.shape[:2]
            shape = {"height": height, "width": width, "encoding": "rgb8", "step": 3 * width}
            image = {"header": header(stamp_ns), **shape, "data": pixels.tobytes()}
            yield "/camera", stamp_ns + 20_000_000, serialize(IMAGE, image)


def record(path: Path, seed: int = 0, wrong: Mistakes | None = None, *, commands: bool = False) -> Path:
    """Write a recording; with its commands it is a demonstration."""
    wrong = wrong or Mistakes()
    left_out = {wrong.without, *(() if commands else ("/arm", "/hand"))}
    types = {topic: kind for topic, kind in TYPES.items() if topic not in left_out}
    found = [each for each in messages(seed, wrong) if each[0] in types]
    return write_bag(path, types, sorted(found, key=lambda each: each[1]))
