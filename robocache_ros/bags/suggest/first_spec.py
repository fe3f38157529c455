"""Generates a first fusion spec: all topics that can be fused, with limits from the measured rate and delay."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import yaml

from robocache_ros.alignments import alignment
from robocache_ros.bags.describe import BagInfo, TopicInfo, cloud_points, image_size
from robocache_ros.bags.suggest.common_size import with_common_size
from robocache_ros.bags.suggest.known_types import UNITS, VECTORS
from robocache_ros.bags.suggest.silence import hold_where_silent
from robocache_ros.bags.suggest.slow_clouds import without_slow_clouds
from robocache_ros.bags.suggest.spec_text import SuggestedStream, lines_of, tens
from robocache_ros.bags.suggest.suggested_fields import NO_STREAMS, numeric_fields
from robocache_ros.bags.suggest.suggested_poses import suggested_poses
from robocache_ros.decode.cdr.definitions import message_type
from robocache_ros.decode.cdr.types import parse_path
from robocache_ros.decode.decoder import nearest_header
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec import CLOUD_TYPE, IMAGE_TYPES, JOINT_TYPE, TF_TYPE, VIDEO_TYPES, load_spec

ACTION_WORDS = ("command", "cmd", "action", "target", "goal", "setpoint", "desired", "leader")
GENERIC = {
    *("joint_states", "image_raw", "image", "image_rect", "color", "compressed", "compressedDepth", "points", "data"),
    *("pose", "twist", "wrench", "imu", "odom"),
}
SLIDING_WORDS = ("finger", "gripper", "prismatic", "slide", "lift", "linear")  # joints that may not be in rad
SPARSE_HZ = 0.5  # a topic with a lower rate is an event, not a stream
FEW_MESSAGES = 2  # a topic with fewer messages is also an event
SLOWEST_HZ = 0.01  # lowest rate in a spec; one wrong stamp can reduce the measured rate
MIN_SHARE = 0.15  # a topic with messages in a smaller share of the recording is also an event
IMAGE_HEIGHT = 240  # larger images are scaled down to it
MAX_SIDE = 4096  # maximum side of an image
GRID = 64  # voxels along the longest side
_OFFSET = "the offset is subtracted before values become float32, whose steps would be coarse"
_SCALARS = re.compile(r"^std_msgs/msg/(Float|U?Int)(8|16|32|64)(MultiArray)?$|^std_msgs/msg/Bool$")


def suggest_spec(info: BagInfo) -> str:
    """Return the YAML text of a valid spec for the recording; RoboCacheError if no topic can be fused."""
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
    streams = without_slow_clouds(info, with_common_size(info, streams))
    text = "\n".join(lines_of(info, streams, left_out)) + "\n"
    load_spec(yaml.safe_load(text))  # a suggested spec must load
    return text


def _nothing(info: BagInfo) -> str:
    """Describe in one line why a recording has no stream."""
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
    if kind == TF_TYPE:
        poses, reason = suggested_poses(info.frames, name)
        return [replace(pose, keys=_keys(name, topic, pose.keys)) for pose in poses], reason
    if not topic.messages:
        return [], "the type is not known, and the recording does not define it (an mcap file would)"
    seconds = (stats.stop_ns - stats.start_ns) / 1e9
    if stats.count < FEW_MESSAGES or stats.rate_hz < SPARSE_HZ or seconds < MIN_SHARE * info.duration_s:
        messages = f"{stats.count} message{'s' if stats.count > 1 else ''} only"
        return [], f"{messages}, in {seconds:.1f} s of the recording: an event, not a stream"
    if kind == JOINT_TYPE:
        streams = [stream for names in _joint_sets(topic) for stream in _joints(name, topic, names)]
        return streams, "" if streams else "no message has joint names, each with a value"
    if kind in IMAGE_TYPES:
        return [_image(name, topic)], ""
    if kind in VIDEO_TYPES:
        return [_video(name, topic)], ""
    if kind == CLOUD_TYPE:
        cloud = _cloud(name, topic)
        return ([cloud], "") if cloud else ([], "no finite x, y, z in it")
    if kind in VECTORS:
        return [_vector(name, topic, *field) for field in VECTORS[kind] if _is_used(topic, field[0])], ""
    if _SCALARS.match(kind):
        return _array(name, topic)
    return _custom(info, name, topic)


def _custom(info: BagInfo, name: str, topic: TopicInfo) -> tuple[list[SuggestedStream], str]:
    """Return streams for the numeric fields of a type without predefined fields."""
    try:
        message = message_type(topic.stats.type, info.definitions)
    except RoboCacheError as error:
        return [], printable(error, 120)
    found, others = numeric_fields(message, topic.messages)
    streams = []
    for field in found:
        smooth = field.is_smooth and not _is_action(name)
        align = "hold" if not smooth else "slerp" if field.is_quaternion else "linear"
        keys: dict[str, Any] = {"field": field.path, "dim": field.dim, **_limits(topic, align)}
        if nearest_header(message, parse_path(field.paths[0])) != ("header",):
            keys["stamp"] = "receive"
        if offset := field.offset:
            keys["offset"] = offset
        if unit := UNITS.get((topic.stats.type, field.paths[0])):
            keys["unit"] = unit
        part = re.sub(r"[^a-z0-9]+", "_", field.name.lower()).strip("_")
        part = f"_{part}" if part and part != "data" and part not in _base(name) else ""
        streams.append(SuggestedStream(f"{_base(name)}{part}", _keys(name, topic, keys), _OFFSET if offset else ""))
    more = f" and {len(others) - 6} more" if len(others) > 6 else ""
    left_out = f"its fields {', '.join(others[:6])}{more}" if others else ""
    if not streams:
        return [], left_out or "it has no number"
    return streams, left_out


def _joint_sets(topic: TopicInfo) -> list[list[str]]:
    """Return the sets of joints that are published together. An arm and its gripper often share a topic."""
    sets = [dict.fromkeys(message.name) for message in topic.messages if len(message.name)]
    return [list(names) for index, names in enumerate(sets) if names.keys() not in [n.keys() for n in sets[:index]]]


def _joints(name: str, topic: TopicInfo, joints: list[str]) -> Iterator[SuggestedStream]:
    messages = [message for message in topic.messages if set(message.name) == set(joints)]
    for field, unit in (("position", "rad"), ("velocity", "rad/s"), ("effort", "N m")):
        values = [np.asarray(getattr(m, field)) for m in messages]
        if all(len(v) == len(m.name) for v, m in zip(values, messages, strict=True)):
            if field != "position" and not any(v.any() for v in values):
                continue  # zeros: the driver does not measure this quantity
            if not all(np.isfinite(v).all() for v in values):
                continue  # NaN: not measured either
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
    integers = "Float" not in topic.stats.type  # states: values between two states are not meaningful
    align = "hold" if integers or _is_action(name) else "linear"
    keys = {"dim": sizes.pop(), **_limits(topic, align), "stamp": "receive"}
    return [SuggestedStream(_base(name), _keys(name, topic, keys))], ""


def _image(name: str, topic: TopicInfo) -> SuggestedStream:
    height, width = image_size(topic.messages[0]) or (224, 224)
    scale = min(1.0, IMAGE_HEIGHT / height, MAX_SIDE / max(height, width))
    size = [height, width] if scale == 1 else [max(2, 2 * round(side * scale / 2)) for side in (height, width)]
    keys = {"image": {"size": size}, **_limits(topic, "hold")}
    return SuggestedStream(_base(name), _keys(name, topic, keys), f"{width}x{height} in the recording")


def _video(name: str, topic: TopicInfo) -> SuggestedStream:
    remark = "as large as in the recording; image: {size: [height, width]} makes it smaller"
    return SuggestedStream(_base(name), _keys(name, topic, _limits(topic, "hold")), remark)


def _cloud(name: str, topic: TopicInfo) -> SuggestedStream | None:
    points = np.concatenate([cloud_points(m) for m in topic.messages])
    if not len(points):
        return None
    low, high = np.quantile(points, [0.01, 0.99], axis=0)  # outliers do not enlarge the grid
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
    if topic.stats.clock.stamp:
        keys = {"stamp": topic.stats.clock.stamp, **keys}
    return {"topic": name, "type": topic.stats.type, **keys, "rate_hz": _nominal_hz(topic), **role}


def _limits(topic: TopicInfo, align: str) -> dict[str, Any]:
    """Return limits, in tens of ms: interpolate over a few lost samples, hold for a few more periods."""
    period = 1000 / _nominal_hz(topic)
    if alignment(align).blends:
        return {"align": align, "max_gap_ms": tens(max(4 * period, 20)), "max_age_ms": tens(max(6 * period, 50))}
    return {"align": align, "max_age_ms": tens(max(3 * period, 50))}


def _nominal_hz(topic: TopicInfo) -> float:
    """Return the rate including lost samples, rounded if it is close to an integer."""
    stats = topic.stats
    expected = len(stats.intervals_ms) + stats.missing
    rate = expected * 1e9 / max(stats.stop_ns - stats.start_ns, 1)
    return round(rate) if rate > 2 and abs(rate - round(rate)) < 0.03 * rate else max(round(rate, 2), SLOWEST_HZ)


def _is_used(topic: TopicInfo, path: str) -> bool:
    """Return false for a zero quaternion, which means no orientation (REP 145)."""
    if not path.endswith(("orientation", "rotation")):
        return True
    return all(any(attrgetter(f"{path}.{axis}")(m) for axis in "xyzw") for m in topic.messages)


def _is_action(name: str) -> bool:
    return any(word in name.lower() for word in ACTION_WORDS)


def _base(name: str) -> str:
    parts = [part for part in name.strip("/").split("/") if part not in GENERIC] or name.strip("/").split("/")
    return re.sub(r"[^a-z0-9_]", "_", parts[-1].lower()).lstrip("_0123456789") or "stream"
