"""Recordings of a simulated arm that moves irregularly before a camera, with known latencies and realistic noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.write import write_bag
from robocache_ros.sim.simulation import image_cdr, joint_state_cdr
from robocache_ros.spec import FusionSpec, load_spec
from test.fuzz.messages import numbers

Float64 = NDArray[np.float64]

JOINTS = tuple(f"joint_{number}" for number in range(1, 7))
START_S = 1_700_000_000
TYPES = {"/joint_states": "sensor_msgs/msg/JointState", "/image": "sensor_msgs/msg/Image"}
TYPES["/command"] = "std_msgs/msg/Float64MultiArray"
HEIGHT, WIDTH = 24, 32
COMMAND_HZ = 50


@dataclass(frozen=True)
class Robot:
    """What is recorded."""

    seed: int = 0
    seconds: int = 60
    joint_hz: int = 500
    image_hz: float = 30
    latency_ms: float = 38.0  # from the exposure of a frame to its stamp
    action_ms: float = 80.0  # from the log time of a command, in the mean, to the position that it names
    # `irregular`: moves of 0.5 to 1.8 s between random positions, with pauses; `sine`: all joints in phase; `still`
    motion: str = "irregular"
    noise: float = 3.0  # standard deviation of a pixel, in levels of 0 to 255
    encoder: float = 5e-4  # and of a joint, in rad
    jitter_ms: float = 1.0  # mean and deviation of what changes from frame to frame, which is part of the latency
    stamp_ppm: float = 0.0  # by how much the clock of the stamps of the joints is slower than the log's
    stamp_offset_s: float = 0.0  # by how much it is ahead


def positions(robot: Robot, random: np.random.Generator) -> tuple[Float64, Float64]:
    """(N,) times in s from -1 on, and (N, 6) positions in rad without noise."""
    times = np.arange(-1, robot.seconds + 1, 1e-3)
    if robot.motion == "sine":
        return times, 0.5 * np.sin(2 * np.pi * 0.8 * times)[:, None] * np.linspace(0.5, 1, len(JOINTS))
    if robot.motion == "still":
        return times, np.zeros((len(times), len(JOINTS)))
    at_s, knots = [-1.0], [random.uniform(-1, 1, len(JOINTS))]
    while at_s[-1] < times[-1]:
        at_s.append(at_s[-1] + random.uniform(0.5, 1.8))
        knots.append(random.uniform(-1, 1, len(JOINTS)))
        if random.random() < 0.4:
            at_s.append(at_s[-1] + random.uniform(0.1, 0.8))
            knots.append(knots[-1])
    index = np.searchsorted(at_s, times, side="right") - 1
    part = ((times - np.array(at_s)[index]) / np.diff(at_s)[index])[:, None]
    smooth = part**3 * (10 - 15 * part + 6 * part**2)  # the least jerk
    ends = np.array(knots)
    return times, ends[index] + smooth * (ends[index + 1] - ends[index])


def frames(joints: Float64, random: np.random.Generator) -> Float64:
    """(N, HEIGHT, WIDTH) images without noise of an arm with three visible joints, (N, 6)."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    images = np.repeat(random.uniform(60, 120, (1, HEIGHT, WIDTH)), len(joints), axis=0)
    angles = np.cumsum(0.8 * joints[:, :3], axis=1)
    tip_x, tip_y = np.full(len(joints), WIDTH / 2), np.full(len(joints), HEIGHT - 2.0)
    for joint, length in enumerate((7, 6, 4)):
        for brightness in (90, 60):
            tip_x = tip_x + 0.5 * length * np.sin(angles[:, joint])
            tip_y = tip_y - 0.5 * length * np.cos(angles[:, joint])
            images += brightness * np.exp(-((x - tip_x[:, None, None]) ** 2 + (y - tip_y[:, None, None]) ** 2) / 5)
    return images


def messages(robot: Robot) -> Iterator[tuple[int, RawMessage]]:
    """Yield messages with their log times, by topic."""
    random = np.random.default_rng(robot.seed)
    times, exact = positions(robot, random)

    def at(when: Float64) -> Float64:
        return np.stack([np.interp(when, times, column) for column in exact.T], axis=1)

    def ns(when: float) -> int:
        return START_S * 10**9 + round(when * 1e9)

    joint_s = np.arange(0, robot.seconds, 1 / robot.joint_hz)
    joint_s += random.uniform(0, 1e-4, len(joint_s))
    measured = at(joint_s) + random.normal(0, robot.encoder, (len(joint_s), len(JOINTS)))
    zeros = np.zeros(len(JOINTS))
    for when, values in zip(joint_s.tolist(), measured, strict=True):
        stamp_ns = ns(when * (1 - robot.stamp_ppm / 1e6) + robot.stamp_offset_s)
        data = joint_state_cdr(stamp_ns, JOINTS, values, zeros)
        yield ns(when + 1e-4 + random.exponential(2e-4)), RawMessage("/joint_states", 0, data)

    exposed_s = np.arange(0, robot.seconds, 1 / robot.image_hz) + random.uniform(0, 1 / robot.image_hz)
    exposed_s = exposed_s[random.random(len(exposed_s)) > 0.01]  # lost frames
    exposed_s += random.normal(0, 5e-4, len(exposed_s))
    seen = frames(at(exposed_s), random)
    seen += random.normal(0, robot.noise, seen.shape) + random.normal(0, 1, (len(seen), 1, 1))  # noise and exposure
    late_s = (robot.latency_ms - robot.jitter_ms) / 1e3 + random.exponential(robot.jitter_ms / 1e3, len(exposed_s))
    for when, late, pixels in zip(exposed_s.tolist(), late_s.tolist(), seen.round().clip(0, 255), strict=True):
        grey = np.repeat(pixels.astype(np.uint8)[..., None], 3, axis=2)
        yield ns(when + max(late, 0) + 1e-3), RawMessage("/image", 0, image_cdr(ns(when + late), "camera", grey))

    sent_s = np.arange(0, robot.seconds, 1 / COMMAND_HZ)
    logged_s = sent_s + random.exponential(robot.jitter_ms / 1e3, len(sent_s))
    targets = at(sent_s + (robot.jitter_ms + robot.action_ms) / 1e3)
    for when, target in zip(logged_s.tolist(), targets, strict=True):
        yield ns(when), RawMessage("/command", 0, numbers(*target))


def record(folder: Path, robot: Robot, topics: tuple[str, ...] = tuple(TYPES)) -> Path:
    """Write the recording of a robot, and return its path."""
    found = [message._replace(log_ns=log_ns) for log_ns, message in messages(robot) if message.topic in topics]
    found.sort(key=lambda message: message.log_ns)
    return write_bag(folder, {topic: TYPES[topic] for topic in topics}, found)


def spec(**streams: dict[str, object]) -> FusionSpec:
    """The spec of the recordings, with more keys for some streams."""
    known: dict[str, dict[str, object]] = {
        "joints": {"topic": "/joint_states", "type": TYPES["/joint_states"], "field": "position", "names": [*JOINTS]},
        "front": {"topic": "/image", "type": TYPES["/image"], "image": {"size": [HEIGHT, WIDTH]}},
        "action": {"topic": "/command", "type": TYPES["/command"], "dim": 6, "stamp": "receive", "role": "action"},
    }
    given = {name: {**keys, **streams.get(name, {})} for name, keys in known.items()}
    return load_spec({"robocache": 1, "rate_hz": 50, "streams": given})
