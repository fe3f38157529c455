"""A first fusion spec for a recording: every topic that can be fused, with limits from its measured rate and delay."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import yaml

from robocache_ros.alignments import alignment
from robocache_ros.bags.describe import BagInfo, TopicInfo, cloud_points, image_size
from robocache_ros.bags.suggest.silence import hold_where_silent
from robocache_ros.bags.suggest.spec_text import SuggestedStream, lines_of, tens
from robocache_ros.bags.suggest.suggested_fields import NO_STREAMS, numeric_fields
from robocache_ros.decode.cdr.definitions import message_type
from robocache_ros.decode.cdr.types import parse_path
from robocache_ros.decode.decoder import nearest_header
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec import CLOUD_TYPE, IMAGE_TYPES, JOINT_TYPE, load_spec

ACTION_WORDS = ("command", "cmd", "action", "target", "goal", "setpoint", "desired", "leader")
GENERIC = {
    *("joint_states", "image_raw", "image", "image_rect", "color", "compressed", "compressedDepth", "points", "data"),
    *("pose", "twist", "wrench", "imu", "odom"),
}
SLIDING_WORDS = ("finger", "gripper", "prismatic", "slide", "lift", "linear")  # joints that may not be in rad
SPARSE_HZ = 0.5  # a topic with fewer messages is an event, not a stream
FEW_MESSAGES = 2  # and so is one with fewer in all
MIN_SHARE = 0.15  # or with messages in a smaller part of the recording
IMAGE_HEIGHT = 240  # larger images are scaled down to it
MAX_SIDE = 4096  # of an image
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


def suggest_spec(info: BagInfo) -> str:
    """YAML text of a spec that loads and fits the recording; RoboCacheError where no topic can be fused."""
    streams: list[SuggestedStream] = []
    left_out = []
    for name, topic in info.topics.items():
        found, why = _streams_of(info, name, topic)
        streams += found
        if why:
            left_out.append(f"{name} ({topic.stats.type}): {why}")
    if not streams:
        raise RoboCacheError(_nothing(info))
    hold_where_silent(info, streams)
    text = "\n".join(lines_of(info, streams, left_out)) + "\n"
    load_spec(yaml.safe_load(text))  # a suggested spec must load
    return text


def _nothing(info: BagInfo) -> str:
    """Why a recording has no stream, in one line."""
    where, counts = printable(info.path, 80), [topic.stats.count for topic in info.topics.values()]
    topics = f"{len(counts)} topic{'s' if len(counts) > 1 else ''}"
    if max(counts, default=0) < FEW_MESSAGES:
        each = f"{max(counts)} message{'s' if max(counts) > 1 else ''} {'each' if len(counts) > 1 else 'in it'}"
        return f"{where}: no topic has enough messages to be a stream ({topics}, {each}); record for longer"
    kinds = Counter(topic.stats.type.split("/")[-1] for topic in info.topics.values())
    shown = printable(", ".join(kind for kind, _ in kinds.most_common(2)), 40)
    return f"{where}: has no topic that can be fused ({topics}: {shown}); record numbers or images"


def _streams_of(info: BagInfo, name: str, topic: TopicInfo) -> tuple[list[SuggestedStream], str]:
    stats, kind = topic.stats, topic.stats.type
    reason = next((text for start, text in NO_STREAMS.items() if kind.startswith(start)), "")
    if reason:
        return [], reason
    if not topic.messages:
        return [], "its type is not known here, the recording does not define it"
    seconds = (stats.stop_ns - stats.start_ns) / 1e9
    if stats.count < FEW_MESSAGES or stats.rate_hz < SPARSE_HZ or seconds < MIN_SHARE * info.duration_s:
        messages = f"{stats.count} message{'s' if stats.count > 1 else ''} only"
        return [], f"{messages}, in {seconds:.1f} s of the recording: an event rather than a stream"
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
    return _custom(info, name, topic)


def _custom(info: BagInfo, name: str, topic: TopicInfo) -> tuple[list[SuggestedStream], str]:
    """The numeric fields of a type that is not known by name."""
    try:
        message = message_type(topic.stats.type, info.definitions)
        found, others = numeric_fields(message, topic.messages)
    except (RoboCacheError, TypeError, ValueError):  # rosbags and the recording disagree on the type
        return [], "its definition cannot be read"
    streams = []
    for field in found:
        smooth = field.is_float and not _is_action(name) and bool(np.isfinite(field.values).all())
        align = "hold" if not smooth else "slerp" if field.is_quaternion else "linear"
        keys: dict[str, Any] = {"field": field.path, "dim": field.dim, **_limits(topic, align)}
        if nearest_header(message, parse_path(field.path)) != ("header",):
            keys["stamp"] = "receive"
        part = re.sub(r"[^a-z0-9]+", "_", field.path).strip("_")
        part = "" if part == "data" else f"_{part}"
        streams.append(SuggestedStream(f"{_base(name)}{part}", _keys(name, topic, keys)))
    if not streams:
        return [], "it has no number, and no list of numbers of one length"
    more = f" and {len(others) - 6} more" if len(others) > 6 else ""
    return streams, f"its fields {', '.join(others[:6])}{more}, constant or small" if others else ""


def _joints(name: str, topic: TopicInfo) -> Iterator[SuggestedStream]:
    first = topic.messages[0]
    joints = list(dict.fromkeys(first.name))
    for field, unit in (("position", "rad"), ("velocity", "rad/s"), ("effort", "N m")):
        values = [np.asarray(getattr(m, field)) for m in topic.messages]
        if joints and all(len(v) == len(m.name) for v, m in zip(values, topic.messages, strict=True)):
            if field != "position" and not any(v.any() for v in values):
                continue  # zeros, from drivers that do not measure it
            if not all(np.isfinite(v).all() for v in values):
                continue  # NaN, from others
            angles = not any(word in joint.lower() for joint in joints for word in SLIDING_WORDS)
            keys = {"field": field, "names": joints, **_limits(topic, "linear"), **({"unit": unit} if angles else {})}
            yield SuggestedStream(f"{_base(name)}_{field}", _keys(name, topic, keys))


def _vector(name: str, topic: TopicInfo, field: str, what: str, unit: str) -> SuggestedStream:
    base = re.sub(r"_?(pose|twist|wrench|odometry|odom|transform)$", "", _base(name)) or _base(name)
    action = _is_action(name)
    align = "hold" if action else "slerp" if what == "orientation" else "linear"
    keys: dict[str, Any] = {"field": field, **_limits(topic, align)}
    if topic.stats.clock.kind == "none":
        keys["stamp"] = "receive"
    if unit:
        keys["unit"] = unit
    return SuggestedStream(f"{base}_{what}", _keys(name, topic, keys))


def _array(name: str, topic: TopicInfo) -> tuple[list[SuggestedStream], str]:
    sizes = {np.size(m.data) for m in topic.messages}
    if len(sizes) != 1 or 0 in sizes:
        return [], f"its length varies ({', '.join(map(str, sorted(sizes)))})"
    integers = "Float" not in topic.stats.type  # states: there is nothing between two of them
    align = "hold" if integers or _is_action(name) else "linear"
    keys = {"dim": sizes.pop(), **_limits(topic, align), "stamp": "receive"}
    return [SuggestedStream(_base(name), _keys(name, topic, keys))], ""


def _image(name: str, topic: TopicInfo) -> SuggestedStream:
    height, width = image_size(topic.messages[0]) or (224, 224)
    scale = min(1.0, IMAGE_HEIGHT / height, MAX_SIDE / max(height, width))
    size = [height, width] if scale == 1 else [max(2, 2 * round(side * scale / 2)) for side in (height, width)]
    keys = {"image": {"size": size}, **_limits(topic, "hold")}
    return SuggestedStream(_base(name), _keys(name, topic, keys), f"{width}x{height} in the recording")


def _cloud(name: str, topic: TopicInfo) -> SuggestedStream | None:
    points = np.concatenate([cloud_points(m) for m in topic.messages])
    if not len(points):
        return None
    low, high = np.quantile(points, [0.01, 0.99], axis=0)  # a few points far off do not enlarge the grid
    size = max(math.ceil(float((high - low).max()) / GRID * 100) / 100, 0.01)
    shape = [8 * max(1, math.ceil(float(side) / size / 8)) for side in high - low]
    middle = (low + high) / 2
    origin = [round(float(m) - n * size / 2, 2) for m, n in zip(middle, shape, strict=True)]
    grid = {"origin_m": origin, "size_m": size, "shape": shape, "reduce": "occupancy"}
    remark = f"around 98 % of the points, in the frame {topic.messages[0].header.frame_id!r}"
    base = _base(name)
    return SuggestedStream(
        base if "point" in base else f"{base}_voxels",
        _keys(name, topic, {"voxels": grid, **_limits(topic, "hold")}),
        remark,
    )


def _keys(name: str, topic: TopicInfo, keys: dict[str, Any]) -> dict[str, Any]:
    role = {"role": "action"} if _is_action(name) else {}
    if topic.stats.clock.text:
        keys = {**keys, "stamp": "receive"}
    return {"topic": name, "type": topic.stats.type, **keys, "rate_hz": _nominal_hz(topic), **role}


def _limits(topic: TopicInfo, align: str) -> dict[str, Any]:
    """Interpolate over a few lost samples, hold for a few periods more; in tens of ms."""
    period = 1000 / _nominal_hz(topic)
    if alignment(align).blends:
        return {"align": align, "max_gap_ms": tens(max(4 * period, 20)), "max_age_ms": tens(max(6 * period, 50))}
    return {"align": align, "max_age_ms": tens(max(3 * period, 50))}


def _nominal_hz(topic: TopicInfo) -> float:
    """The rate with lost samples counted in, rounded where it is nearly an integer."""
    stats = topic.stats
    expected = len(stats.intervals_ms) + stats.missing
    rate = expected * 1e9 / max(stats.stop_ns - stats.start_ns, 1)
    return round(rate) if rate > 2 and abs(rate - round(rate)) < 0.03 * rate else round(rate, 2)


def _is_used(topic: TopicInfo, path: str) -> bool:
    """False for a quaternion of zeros, which means no orientation (REP 145)."""
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
