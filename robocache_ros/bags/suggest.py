"""A first fusion spec for a recording: every topic that can be fused, with limits from its measured rate and delay."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from robocache_ros.bags.describe import BagInfo, TopicInfo, cloud_points, image_size
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import CLOUD_TYPE, IMAGE_TYPES, JOINT_TYPE, load_spec

ACTION_WORDS = ("command", "cmd", "action", "target", "goal", "setpoint", "desired", "leader")
GENERIC = {
    "joint_states", "image_raw", "image", "image_rect", "color", "compressed", "compressedDepth", "points", "data",
    "pose", "twist", "wrench", "imu", "odom",
}  # fmt: skip
SLIDING_WORDS = ("finger", "gripper", "prismatic", "slide", "lift", "linear")  # joints that may not count in rad
SPARSE_HZ = 0.5  # a topic that speaks less often is an event, not a stream
IMAGE_HEIGHT = 240  # larger images are scaled down to it
GRID = 64  # voxels along the longest side
VECTORS = {  # type -> (path, what it is, unit); a quaternion is interpolated on the sphere
    "geometry_msgs/msg/PoseStamped": (("pose.position", "position", "m"), ("pose.orientation", "orientation", "")),
    "geometry_msgs/msg/PoseWithCovarianceStamped": (
        ("pose.pose.position", "position", "m"),
        ("pose.pose.orientation", "orientation", ""),
    ),
    "geometry_msgs/msg/Pose": (("position", "position", "m"), ("orientation", "orientation", "")),
    "geometry_msgs/msg/TransformStamped": (
        ("transform.translation", "position", "m"),
        ("transform.rotation", "orientation", ""),
    ),
    "geometry_msgs/msg/TwistStamped": (("twist.linear", "linear", "m/s"), ("twist.angular", "angular", "rad/s")),
    "geometry_msgs/msg/Twist": (("linear", "linear", "m/s"), ("angular", "angular", "rad/s")),
    "geometry_msgs/msg/WrenchStamped": (("wrench.force", "force", "N"), ("wrench.torque", "torque", "N m")),
    "nav_msgs/msg/Odometry": (
        ("pose.pose.position", "position", "m"),
        ("pose.pose.orientation", "orientation", ""),
        ("twist.twist.linear", "linear", "m/s"),
        ("twist.twist.angular", "angular", "rad/s"),
    ),
    "sensor_msgs/msg/Imu": (
        ("orientation", "orientation", ""),
        ("angular_velocity", "angular_velocity", "rad/s"),
        ("linear_acceleration", "linear_acceleration", "m/s^2"),
    ),
}
_SCALARS = re.compile(r"^std_msgs/msg/(Float|U?Int)(8|16|32|64)(MultiArray)?$|^std_msgs/msg/Bool$")


@dataclass(frozen=True)
class _Stream:
    name: str  # wanted; made unique later
    keys: dict[str, Any]
    remark: str = ""


def suggest_spec(info: BagInfo) -> str:
    """YAML text of a spec that loads and fits the recording; RoboCacheError where no topic can be fused."""
    streams: list[_Stream] = []
    left_out = []
    for name, topic in info.topics.items():
        found, why = _streams_of(name, topic)
        streams += found
        if why:
            left_out.append(f"{name} ({topic.stats.type}): {why}")
    if not streams:
        raise RoboCacheError(f"{info.path}: has no topic that can be fused: {'; '.join(left_out)}")
    text = "\n".join([*_head(info, streams), *_blocks(streams), *_tail(streams, left_out)]) + "\n"
    load_spec(yaml.safe_load(text))  # a spec that is offered must load
    return text


def _streams_of(name: str, topic: TopicInfo) -> tuple[list[_Stream], str]:
    stats, kind = topic.stats, topic.stats.type
    if not topic.messages:
        return [], "its type is not known here"
    if stats.rate_hz < SPARSE_HZ:
        return [], f"{stats.count} messages only, an event rather than a stream"
    if kind == JOINT_TYPE:
        return list(_joints(name, topic)), ""
    if kind in IMAGE_TYPES:
        return [_image(name, topic)], ""
    if kind == CLOUD_TYPE:
        cloud = _cloud(name, topic)
        return ([cloud], "") if cloud else ([], "no finite x, y, z in it")
    if kind in VECTORS:
        return [_vector(name, topic, *field) for field in VECTORS[kind] if _is_used(topic, field[0])], ""
    if _SCALARS.match(kind):
        return _array(name, topic)
    return [], "name a numeric field of it to take it in"


def _joints(name: str, topic: TopicInfo) -> Iterator[_Stream]:
    first = topic.messages[0]
    joints = list(dict.fromkeys(first.name))
    for field, unit in (("position", "rad"), ("velocity", "rad/s"), ("effort", "N m")):
        values = [np.asarray(getattr(m, field)) for m in topic.messages]
        if joints and all(len(v) == len(m.name) for v, m in zip(values, topic.messages, strict=True)):
            if field != "position" and not any(v.any() for v in values):
                continue  # filled with zeros, as drivers do that do not measure it
            angles = not any(word in joint.lower() for joint in joints for word in SLIDING_WORDS)
            keys = {"field": field, "names": joints, **_limits(topic, "linear"), **({"unit": unit} if angles else {})}
            yield _Stream(f"{_base(name)}_{field}", _keys(name, topic, keys))


def _vector(name: str, topic: TopicInfo, field: str, what: str, unit: str) -> _Stream:
    base = re.sub(r"_?(pose|twist|wrench|odometry|odom|transform)$", "", _base(name)) or _base(name)
    action = _is_action(name)
    align = "hold" if action else "slerp" if what == "orientation" else "linear"
    keys: dict[str, Any] = {"field": field, **_limits(topic, align)}
    if not topic.stats.stamped:
        keys["stamp"] = "receive"
    if unit:
        keys["unit"] = unit
    return _Stream(f"{base}_{what}", _keys(name, topic, keys))


def _array(name: str, topic: TopicInfo) -> tuple[list[_Stream], str]:
    sizes = {np.size(m.data) for m in topic.messages}
    if len(sizes) != 1 or 0 in sizes:
        return [], f"its length varies ({', '.join(map(str, sorted(sizes)))})"
    whole = "Float" not in topic.stats.type  # whole numbers are states: nothing lies between two of them
    align = "hold" if whole or _is_action(name) else "linear"
    keys = {"dim": sizes.pop(), **_limits(topic, align), "stamp": "receive"}
    return [_Stream(_base(name), _keys(name, topic, keys))], ""


def _image(name: str, topic: TopicInfo) -> _Stream:
    height, width = image_size(topic.messages[0]) or (224, 224)
    scale = min(1.0, IMAGE_HEIGHT / height)
    size = [max(2, 2 * round(side * scale / 2)) for side in (height, width)]  # even, as video needs it
    keys = {"image": {"size": size}, **_limits(topic, "hold")}
    return _Stream(_base(name), _keys(name, topic, keys), f"{width}x{height} in the recording")


def _cloud(name: str, topic: TopicInfo) -> _Stream | None:
    points = np.concatenate([cloud_points(m) for m in topic.messages])
    if not len(points):
        return None
    low, high = np.quantile(points, [0.01, 0.99], axis=0)  # a few points far off shall not blow up the grid
    size = max(math.ceil(float((high - low).max()) / GRID * 100) / 100, 0.01)
    shape = [8 * max(1, math.ceil(float(side) / size / 8)) for side in high - low]
    middle = (low + high) / 2
    origin = [round(float(m) - n * size / 2, 2) for m, n in zip(middle, shape, strict=True)]
    grid = {"origin_m": origin, "size_m": size, "shape": shape, "reduce": "occupancy"}
    remark = f"around 98 % of the points, in the frame {topic.messages[0].header.frame_id!r}"
    base = _base(name)
    return _Stream(
        base if "point" in base else f"{base}_voxels",
        _keys(name, topic, {"voxels": grid, **_limits(topic, "hold")}),
        remark,
    )


def _keys(name: str, topic: TopicInfo, keys: dict[str, Any]) -> dict[str, Any]:
    role = {"role": "action"} if _is_action(name) else {}
    return {"topic": name, "type": topic.stats.type, **keys, "rate_hz": _nominal_hz(topic), **role}


def _limits(topic: TopicInfo, align: str) -> dict[str, Any]:
    """Interpolate over a few lost samples, hold for a few periods more; in tens of ms."""
    period = 1000 / _nominal_hz(topic)
    if align in ("linear", "slerp"):
        return {"align": align, "max_gap_ms": _tens(max(4 * period, 20)), "max_age_ms": _tens(max(6 * period, 50))}
    return {"align": align, "max_age_ms": _tens(max(3 * period, 50))}


def _nominal_hz(topic: TopicInfo) -> float:
    """The rate with what is missing made up for; whole where it nearly is."""
    stats = topic.stats
    expected = len(stats.intervals_ms) + stats.missing
    rate = expected * 1e9 / max(stats.stop_ns - stats.start_ns, 1)
    return round(rate) if rate > 2 and abs(rate - round(rate)) < 0.03 * rate else round(rate, 2)


def _is_used(topic: TopicInfo, path: str) -> bool:
    """A quaternion of zeros says that there is no orientation (REP 145); anything else is data."""
    if not path.endswith(("orientation", "rotation")):
        return True
    return all(any(_at(m, f"{path}.{axis}") for axis in "xyzw") for m in topic.messages)


def _at(message: Any, path: str) -> Any:
    for step in path.split("."):
        message = getattr(message, step)
    return message


def _is_action(name: str) -> bool:
    return any(word in name.lower() for word in ACTION_WORDS)


def _base(name: str) -> str:
    parts = [part for part in name.strip("/").split("/") if part not in GENERIC] or name.strip("/").split("/")
    return re.sub(r"[^a-z0-9_]", "_", parts[-1].lower()).lstrip("_0123456789") or "stream"


def _tens(value: float) -> int:
    return 10 * math.ceil(value / 10 - 1e-9)


def _head(info: BagInfo, streams: Sequence[_Stream]) -> list[str]:
    waits = []
    for stream in streams:
        topic = info.topics[stream.keys["topic"]]
        neighbour = topic.stats.period_ms if stream.keys["align"] in ("linear", "slerp") else 0.0
        waits.append((topic.stats.delay_ms(1.0) + neighbour, stream.keys["topic"]))
    longest, slowest = max(waits)
    return [
        f"# A first spec for {info.path.name}, from what was measured in it ({info.duration_s:.1f} s).",
        "# `robocache check` shows what it resolves to; `robocache schema` lets an editor complete it.",
        "robocache: 1",
        "rate_hz: 50",
        f"# The longest that a value came after its time was {longest:.0f} ms ({slowest}).",
        "# With a shorter delay_ms a robot reacts faster, and what comes later than that is marked as missing.",
        f"delay_ms: {max(_tens(longest * 1.05), 10)}",
        "streams:",
    ]


def _blocks(streams: Sequence[_Stream]) -> Iterator[str]:
    taken: set[str] = set()
    for stream in streams:
        name, count = stream.name, 2
        if name in taken:  # with what stands before it in the topic, then by number
            parts = [re.sub(r"[^a-z0-9_]", "_", p.lower()) for p in stream.keys["topic"].strip("/").split("/")]
            name = f"{parts[0]}_{stream.name}".lstrip("_0123456789")
        while name in taken:
            name, count = f"{stream.name}_{count}", count + 1
        taken.add(name)
        if stream.remark:
            yield f"  # {stream.remark}"
        yield f"  {name}:"
        for key, value in stream.keys.items():
            yield f"    {key}: {_flow(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).strip()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _tail(streams: Sequence[_Stream], left_out: Sequence[str]) -> Iterator[str]:
    if not any(stream.keys.get("role") == "action" for stream in streams):
        yield "# No topic looks like a command: give `role: action` to the stream that a policy shall predict."
    if left_out:
        yield "# Left out:"
        yield from (f"#   {line}" for line in left_out)
