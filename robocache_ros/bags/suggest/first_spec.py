"""Generates a first fusion spec: the topics that a policy can use, with limits from what was measured."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import yaml

from robocache_ros.alignments import alignment
from robocache_ros.bags.clocks import LIMIT_NS
from robocache_ros.bags.describe import BagInfo, FrameInfo, TopicInfo, cloud_points, image_size, upwards
from robocache_ros.bags.suggest.fields import (
    NO_STREAMS,
    UNITS,
    VECTORS,
    Column,
    angle_unit,
    in_each_message,
    is_rounded,
    numeric_fields,
    offset_of,
    read_columns,
    readable,
    shown,
    usable_columns,
)
from robocache_ros.bags.suggest.spec_text import (
    MAX_NAME,
    SuggestedStream,
    as_name,
    is_depth,
    lines_of,
    unique_names,
    with_common_size,
)
from robocache_ros.decode.decoder import nearest_header
from robocache_ros.decode.definitions import message_type, parse_path
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec import CLOUD_TYPE, IMAGE_TYPES, JOINT_TYPE, TF_STATIC, TF_TYPE, VIDEO_TYPES, load_spec
from robocache_ros.spec.dataset import commented_section

ACTION_WORDS = ("command", "cmd", "action", "target", "goal", "setpoint", "desired", "leader")
CONTROL = re.compile(r"(^|_)controll?(s|er|ers)?(_|$)")  # of the last part of a topic
MEASURED = re.compile(r"(^|_)(state|states|status|mode|modes|odom|odometry|feedback|diagnostics|statistics|info)(_|$)")
GENERIC = {
    *("joint_states", "image_raw", "image", "image_rect", "color", "compressed", "compressedDepth", "points", "data"),
    *("pose", "twist", "wrench", "imu", "odom"),
}
VAGUE = re.compile(
    r"^(data|state|states|status|commands?|cmd|values?|output|input|raw|feedback|setpoints?|controls?|position|velocity)$"
)
SLIDING_WORDS = ("finger", "gripper", "prismatic", "slide", "lift", "linear")  # joints that may not be in rad
LARGEST_RAD = 4 * math.pi  # larger values of joints may be degrees or the ticks of a servo
SPARSE_HZ = 0.5  # a topic with a lower rate is an event, not a stream
MAX_EVENT_MESSAGES = 2  # a topic with fewer messages is also an event
SLOWEST_HZ = 0.01  # lowest rate in a spec; one wrong stamp can reduce the measured rate
MIN_SHARE = 0.15  # a topic with messages in a smaller share of the recording is also an event
IMAGE_HEIGHT = 240  # larger images are scaled down to it
MAX_SIDE = 4096  # maximum side of an image
GRID = 64  # voxels along the longest side
KINDS = ("actions", "clouds", "images", "joints", "numbers", "poses")  # of streams, for `only`
CONTROLLER_STATES = re.compile(r"^control_msgs/msg/.*State(Stamped)?$|/JointTrajectoryControllerState$")
_OFFSET = "the offset is subtracted before values become float32, whose steps would be coarse"
_SCALARS = re.compile(r"^std_msgs/msg/(Float|U?Int)(8|16|32|64)(MultiArray)?$|^std_msgs/msg/Bool$")


class FirstSpec(NamedTuple):
    """A suggested spec: its YAML text, and what the user should know before an export."""

    text: str
    warnings: tuple[str, ...] = ()


def first_spec(info: BagInfo, topics: Sequence[str] = (), only: Sequence[str] = ()) -> FirstSpec:
    """Return a valid spec for the recording.

    Args:
        info: the recording.
        topics: names of topics or globs such as `/arm/*`; empty: all topics.
        only: kinds of streams, of KINDS; empty: all kinds.

    Errors:
        RoboCacheError: no topic can be fused, or none is chosen.
    """
    _check_choice(info, topics, only)
    found: list[SuggestedStream] = []
    left_out = []
    for name, topic in info.topics.items():
        if topics and not any(fnmatchcase(name, glob) for glob in topics):
            continue
        streams, why = _streams_of(info, name, topic, chosen=bool(topics))
        found += streams
        if why:
            left_out.append(_line(name, topic, why))
    columns = read_columns(info, found)
    warnings = []
    streams, useless = _refined(info, found, columns, constants=False)
    if not streams and found:
        streams, useless = _refined(info, found, columns, constants=True)
        if streams:
            warnings.append("no value changes in this recording, so it does not show which ones a policy can use")
    streams = [stream for stream in streams if not only or _kind(stream) in only]
    if not streams:
        raise RoboCacheError(_nothing(info, only, found))
    streams = unique_names(with_common_size(info, streams))
    streams, longest = with_times(info, streams)
    warnings += filter(None, [short_episodes(info, streams)])
    if all(stream.keys.get("role") == "action" for stream in streams if not stream.left_out):
        warnings.append(
            "every stream is an action, so a policy has nothing to observe; record sensors too, or change a `role`"
        )
    delay = delay_ms(longest.ms)
    source = f" ({printable(longest.topic, 80)})" if longest.topic else ""
    why = f"Nearly all values arrive within {longest.ms:.0f} ms of their time{source}, except where a stream is held."
    lines = lines_of(info, streams, [*left_out, *useless], warnings, (delay, why))
    commands = any(stream.keys.get("role") == "action" and not stream.left_out for stream in streams)
    section = commented_section() if commands else commented_section(action="next-observation")
    text = "\n".join([*lines, *section]) + "\n"
    load_spec(yaml.safe_load(text))  # a suggested spec must load
    return FirstSpec(text, tuple(warnings))


def _check_choice(info: BagInfo, topics: Sequence[str], only: Sequence[str]) -> None:
    for kind in only:
        if kind not in KINDS:
            raise RoboCacheError(f"--only: {printable(kind, 40)!r} is not one of {', '.join(KINDS)}; use one of them")
    for glob in topics:
        if not any(fnmatchcase(name, glob) for name in info.topics):
            near = get_close_matches(glob, info.topics, n=1, cutoff=0.5)
            hint = f"did you mean {printable(near[0], 60)}?" if near else "`robocache info` lists its topics"
            raise RoboCacheError(f"--topics: the recording has no topic {printable(glob, 60)}; {hint}")


def _line(name: str, topic: TopicInfo, why: str) -> str:
    return f"{printable(name, 120)} ({printable(topic.stats.type, 80)}): {why}"


def _kind(stream: SuggestedStream) -> str:
    keys = stream.keys
    if keys.get("role") == "action":
        return "actions"
    if "voxels" in keys:
        return "clouds"
    if keys["type"] in IMAGE_TYPES or keys["type"] in VIDEO_TYPES:
        return "images"
    if keys["type"] == JOINT_TYPE:
        return "joints"
    vectors = [what for _, what, _ in VECTORS.get(keys["type"], ())]
    return "poses" if "frames" in keys or "position" in vectors else "numbers"


def _nothing(info: BagInfo, only: Sequence[str], found: Sequence[SuggestedStream]) -> str:
    """Describe in one line why a recording has no stream."""
    where = printable(info.path, 80)
    counts = [topic.stats.count for topic in info.topics.values() if topic.stats.count]
    if only and found:
        return f"{where}: no stream is of the kind {', '.join(only)}; leave out --only"
    topics = f"{len(counts)} topic{'s' if len(counts) > 1 else ''}"
    if max(counts, default=0) < MAX_EVENT_MESSAGES:
        each = f"{max(counts)} message{'s' if max(counts) > 1 else ''} {'each' if len(counts) > 1 else 'in it'}"
        return f"{where}: no topic has enough messages to be a stream ({topics}, {each}); record for longer"
    kinds = Counter(topic.stats.type.split("/")[-1] for topic in info.topics.values() if topic.stats.count)
    names = printable(", ".join(kind for kind, _ in kinds.most_common(2)), 40)
    return f"{where}: has no topic that can be fused ({topics}: {names}); record numbers or images"


def _refined(
    info: BagInfo, streams: Sequence[SuggestedStream], columns: Sequence[Sequence[Column]], *, constants: bool
) -> tuple[list[SuggestedStream], list[str]]:
    """Return the streams with the columns that a policy can use, and lines that name the others.

    Args:
        info: the recording.
        streams: one per topic and field.
        columns: of each stream, in the whole recording; empty for images, clouds and poses.
        constants: whether columns that never change are used.
    """
    found: list[SuggestedStream] = []
    useless: dict[str, dict[str, list[str]]] = {}  # topic -> reason -> labels
    for stream, values in zip(streams, columns, strict=True):
        name = stream.keys["topic"]
        parts = [stream]
        if values:
            kept, reasons = usable_columns(stream, values, constants=constants)
            for reason, labels in reasons.items():
                field = f"{stream.keys['field']} of " if "names" in stream.keys else ""
                useless.setdefault(name, {}).setdefault(reason, []).extend(f"{field}{label}" for label in labels)
            parts = _with_columns(stream, values, kept) if kept else []
        for part in parts:
            if problem := readable(info, part):
                useless.setdefault(name, {}).setdefault(printable(problem, 120), []).append(part.name)
            else:
                found.append(part)
    return found, [_line(name, info.topics[name], shown(reasons)) for name, reasons in useless.items()]


def _with_columns(
    stream: SuggestedStream, all_columns: Sequence[Column], kept: Sequence[Column]
) -> list[SuggestedStream]:
    """Return a stream of the columns that are kept, and one for each unit of those that are angles that wrap around."""
    keys, columns = stream.keys, list(kept)
    if "names" in keys:
        with_unit = keys["field"] != "position" or all(max(-c.low, c.high) <= LARGEST_RAD for c in kept)
        keys = {**keys, "names": [column.label for column in kept]}
        return [replace(stream, keys=keys if with_unit else {k: v for k, v in keys.items() if k != "unit"})]
    found = []
    for unit in ("deg", "rad") if keys["align"] == "linear" else ():
        alike = {in_each_message(column.path) for column in columns if angle_unit(column) == unit}
        angles = [column for column in columns if in_each_message(column.path) in alike]
        if angles:
            columns = [column for column in columns if column not in angles]
            last = as_name(angles[0].path.rpartition(".")[2]) if len(angles) == 1 else "angles"
            name = stream.name if last in stream.name else f"{stream.name}_{last}"
            remark = "an angle that wraps around"
            made = _of_columns(stream, angles)
            keys_of = {key: value for key, value in made.keys.items() if key != "offset"}
            found.append(replace(made, name=name, keys={**keys_of, "align": "angle", "unit": unit}, remarks=(remark,)))
    if not columns:
        return found
    rest = stream if len(columns) == len(all_columns) else _of_columns(stream, columns)
    offset = [] if stream.is_quaternion else [offset_of(column) for column in columns]
    if any(offset) or (offset and any(is_rounded(column.path) for column in columns)):
        rest = replace(rest, keys={**rest.keys, "offset": offset}, remarks=(*rest.remarks, _OFFSET))
    return [rest, *found]


def _of_columns(stream: SuggestedStream, columns: Sequence[Column]) -> SuggestedStream:
    paths = [column.path for column in columns]
    field = paths[0] if len(paths) == 1 else paths
    keys = {**stream.keys, "field": field, "dim": len(paths)}
    order = ("topic", "type", "stamp", "field", "dim")
    return replace(stream, keys={**{key: keys[key] for key in order if key in keys}, **keys})


def _streams_of(info: BagInfo, name: str, topic: TopicInfo, *, chosen: bool) -> tuple[list[SuggestedStream], str]:
    stats, kind = topic.stats, topic.stats.type
    reason = next((text for start, text in NO_STREAMS.items() if kind.startswith(start)), "")
    if reason:
        return [], reason
    if kind == TF_TYPE:
        poses, reason = suggested_poses(info.frames, name)
        # Each pose has the `stamp` of its own transforms.
        return [replace(pose, keys=_keys(name, topic, pose.keys, stamp="")) for pose in poses], reason
    if not stats.count:
        return [], "no messages"
    seconds = (stats.stop_ns - stats.start_ns) / 1e9
    if stats.count < MAX_EVENT_MESSAGES or stats.rate_hz < SPARSE_HZ or seconds < MIN_SHARE * info.duration_s:
        messages = f"{stats.count} message{'s' if stats.count > 1 else ''} only"
        return [], f"{messages}, in {seconds:.1f} s of the recording: an event, not a stream"
    if not topic.messages:
        return [], "the type is not known, and the recording does not define it (an mcap file would)"
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
        unused = [field for field, _, _ in VECTORS[kind] if not _is_used(topic, field)]
        streams = [_vector(name, topic, *field) for field in VECTORS[kind] if field[0] not in unused]
        return streams, f"{', '.join(unused)} is 0, 0, 0, 0, which is no orientation" if unused else ""
    if _SCALARS.match(kind):
        return _array(name, topic)
    if CONTROLLER_STATES.search(kind) and not chosen and (joints := _joint_topic(info)):
        how = f"--topics {printable(name, 80)} proposes it"
        return [], f"the state of a controller, whose joints are in {joints}; {how}"
    return _custom(info, name, topic)


def _joint_topic(info: BagInfo) -> str:
    """Return a topic of joint states that is a stream; empty if there is none."""
    topics = (n for n, t in info.topics.items() if t.stats.type == JOINT_TYPE and t.stats.rate_hz >= SPARSE_HZ)
    return printable(next(topics, ""), 80)


def _custom(info: BagInfo, name: str, topic: TopicInfo) -> tuple[list[SuggestedStream], str]:
    """Return streams for the numeric fields of a type without predefined fields."""
    try:
        message = message_type(topic.stats.type, info.definitions)
    except RoboCacheError as error:
        return [], printable(error, 120)
    found, others = numeric_fields(message, topic.messages)
    streams = []
    for field in found:
        smooth = field.is_float and not _is_action(name)
        align = "hold" if not smooth else "slerp" if field.is_quaternion else "linear"
        keys: dict[str, Any] = {"field": field.path, "dim": field.dim, **_limits(topic, align)}
        if nearest_header(message, parse_path(field.paths[0])) != ("header",):
            keys["stamp"] = "receive"
        if unit := UNITS.get((topic.stats.type, field.paths[0])):
            keys["unit"] = unit
        part = as_name(field.name)
        part = f"_{part}" if part and part != "data" and part not in _base(name) else ""
        part = part or ("" if field.is_float or len(found) == 1 else "_states")
        streams.append(
            SuggestedStream(
                f"{_base(name)}{part}"[:MAX_NAME], _keys(name, topic, keys), is_quaternion=field.is_quaternion
            )
        )
    left_out = f"its fields {', '.join(others)}" if others else ""
    if not streams:
        return [], left_out or "it has no number that is a measurement"
    return streams, left_out


def _joint_sets(topic: TopicInfo) -> list[list[str]]:
    """Return the sets of joints that are published together. An arm and its gripper often share a topic."""
    sets = [dict.fromkeys(message.name) for message in topic.messages if len(message.name)]
    return [list(names) for index, names in enumerate(sets) if names.keys() not in [n.keys() for n in sets[:index]]]


def _joints(name: str, topic: TopicInfo, joints: list[str]) -> Iterator[SuggestedStream]:
    messages = [message for message in topic.messages if set(message.name) == set(joints)]
    largest = max((float(np.abs(np.nan_to_num(m.position)).max(initial=0.0)) for m in messages), default=0.0)
    angles = not any(word in joint.lower() for joint in joints for word in SLIDING_WORDS) and largest <= LARGEST_RAD
    for field, unit in (("position", "rad"), ("velocity", "rad/s"), ("effort", "N m")):
        values = [np.asarray(getattr(m, field)) for m in messages]
        if all(len(v) == len(m.name) for v, m in zip(values, messages, strict=True)):
            align = "hold" if _is_action(name) else "linear"  # a command is in effect until the next one
            keys = {"field": field, "names": joints, **_limits(topic, align), **({"unit": unit} if angles else {})}
            yield SuggestedStream(f"{_base(name)}_{field}", _keys(name, topic, keys))


def _vector(name: str, topic: TopicInfo, field: str, what: str, unit: str) -> SuggestedStream:
    base = re.sub(r"_?(pose|twist|wrench|odometry|odom|transform)$", "", _base(name)) or _base(name)
    action = _is_action(name)
    align = "hold" if action else "slerp" if what == "orientation" else "linear"
    keys: dict[str, Any] = {"field": field, "dim": 4 if what == "orientation" else 3, **_limits(topic, align)}
    if topic.stats.clock.kind == "none":
        keys["stamp"] = "receive"
    if unit:
        keys["unit"] = unit
    return SuggestedStream(f"{base}_{what}", _keys(name, topic, keys), is_quaternion=what == "orientation")


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
    depth = is_depth(topic.messages[0])
    keys = {"image": {"size": size}, **_limits(topic, "nearest" if depth else "hold")}
    return SuggestedStream(_base(name), _keys(name, topic, keys), (f"{width}x{height} in the recording",))


def _video(name: str, topic: TopicInfo) -> SuggestedStream:
    remark = "as large as in the recording; image: {size: [height, width]} makes it smaller"
    return SuggestedStream(_base(name), _keys(name, topic, _limits(topic, "hold")), (remark,))


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
        (remark,),
    )


def _keys(name: str, topic: TopicInfo, keys: dict[str, Any], stamp: str | None = None) -> dict[str, Any]:
    role = {"role": "action"} if _is_action(name) else {}
    stamp = topic.stats.clock.stamp if stamp is None else stamp
    if stamp:
        keys = {"stamp": stamp, **keys}
    skew = {}
    if topic.stats.clock.kind == "timeline" and (late_ms := topic.stats.delay_ms(0.99)) > LIMIT_NS / 1e6:
        skew = {"max_skew_ms": tens(2 * late_ms)}  # stamped by the data that it was computed from
    return {"topic": name, "type": topic.stats.type, **keys, **skew, "rate_hz": _nominal_hz(topic), **role}


def _limits(topic: TopicInfo, align: str) -> dict[str, Any]:
    """Return limits from the rate; of a topic with bursts, from the time between them."""
    intervals = topic.stats.intervals_ms
    between = float(np.quantile(intervals, 0.95)) if len(intervals) else 0.0
    period = 1000 / _nominal_hz(topic)
    return limits(between if between > BURSTS * period else period, align)


BURSTS = 5.0  # in a topic with bursts, one interval in twenty is longer than this many mean periods


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
    """Whether the name of a topic is that of a command, and not that of the state of a controller."""
    lower = name.lower()
    if any(word in lower for word in ACTION_WORDS):
        return not MEASURED.search(_last(lower)) or any(word in _last(lower) for word in ACTION_WORDS)
    return bool(CONTROL.search(_last(lower))) and not MEASURED.search(_last(lower))


def _last(name: str) -> str:
    parts = [part for part in name.strip("/").split("/") if part not in ("data", "value", "values")]
    return parts[-1] if parts else name


def _base(name: str) -> str:
    """Return a name for the streams of a topic: its last part, with the one before it where the last is vague."""
    every = name.strip("/").split("/")
    parts = [part for part in every if part not in GENERIC] or every[:1]
    last = as_name(parts[-1])
    at = every.index(parts[-1])
    if VAGUE.match(last) and at:
        last = f"{as_name(every[at - 1])}_{last}"
    return last.lstrip("_0123456789") or "stream"


OFTEN_SILENT = 0.25  # share of the time from a topic's first message to the end of the recording
SLOWEST_BLENDED_HZ = 5  # the next sample of a slower topic comes too late to interpolate on a robot
COVERED = 0.99  # share of the messages of a topic that arrive within `delay_ms`
LATER, LATE_MS = 3.0, 300.0  # a topic is late above this factor of the usual wait, and above this wait
SLOWER_CLOUD = 1.25  # a cloud that raises `delay_ms` by this factor is left out
SHORT_S, SHORT_SHARE, FEWEST_SHORT = 1.0, 0.5, 3  # short episodes: their length, and how many are worth a warning
_HELD = "often silent: its last value is held, with its age; with `split` an export leaves such ticks out"
_NEWEST = "its newest value is held, because ticks would wait long for the next one"


class Wait(NamedTuple):
    """How long a tick waits for the values of a topic."""

    ms: float
    topic: str


def tens(value: float) -> int:
    """Round a value up to a multiple of ten."""
    return 10 * math.ceil(value / 10 - 1e-9)


def limits(period_ms: float, align: str) -> dict[str, int | str]:
    """Return the limits of a stream: interpolate over a few lost samples, hold for a few more periods."""
    if alignment(align).blends:
        gap, age = max(4 * period_ms, 20), max(6 * period_ms, 50)
        return {"align": align, "max_gap_ms": tens(gap), "max_age_ms": tens(age)}
    return {"align": align, "max_age_ms": tens(max(3 * period_ms, 50))}


def with_times(info: BagInfo, streams: Sequence[SuggestedStream]) -> tuple[list[SuggestedStream], Wait]:
    """Return the streams with slow, late and silent ones held, and the longest wait of the others."""
    found = [_held_if_slow(info, stream) for stream in streams]
    clouds = [stream for stream in found if "voxels" in stream.keys]
    waits: dict[str, float] = {}
    for stream in found:
        if stream not in clouds and not stream.is_held:
            wait = wait_ms(info, stream)
            waits[stream.keys["topic"]] = max(wait, waits.get(stream.keys["topic"], 0.0))
    known = sorted(wait for wait in waits.values() if wait)
    limit = max(LATER * known[(len(known) - 1) // 2], LATE_MS) if known else LATE_MS  # of the lower median
    found = [
        _held_because_late(info, stream)
        if waits.get(stream.keys["topic"], 0.0) > limit and not stream.is_held and stream not in clouds
        else stream
        for stream in found
    ]
    others = [_wait(info, stream) for stream in found if "voxels" not in stream.keys and not stream.is_held]
    longest = max(others, default=Wait(0.0, ""))
    if not others and clouds:
        longest = max(_wait(info, stream) for stream in clouds)
    found = [_without_slow_cloud(info, stream, longest) if others else stream for stream in found]
    longest = max([longest, *(_wait(info, s) for s in found if "voxels" in s.keys and not s.left_out)])
    return [_held_if_silent(info, stream) for stream in found], longest


def wait_ms(info: BagInfo, stream: SuggestedStream) -> float:
    """Return the delay of a value of a stream after its time in ms, of nearly all its messages."""
    topic = info.topics[stream.keys["topic"]]
    period_ms = stream.period_ms or topic.stats.period_ms
    align = stream.keys["align"]
    neighbour = period_ms if alignment(align).blends else period_ms / 2 if align == "nearest" else 0.0
    delays = stream.delays_ms if stream.delays_ms is not None else topic.stats.delays_ms
    in_time = delays[abs(delays) <= stream.keys.get("max_skew_ms", LIMIT_NS / 1e6)]  # fusion drops other samples
    return max(float(np.quantile(in_time, COVERED)) if len(in_time) else 0.0, 0.0) + neighbour


def delay_ms(longest_ms: float) -> int:
    """Return the `delay_ms` of a spec whose values have at most this delay."""
    return max(tens(longest_ms * 1.05), 10)


def _wait(info: BagInfo, stream: SuggestedStream) -> Wait:
    return Wait(wait_ms(info, stream), stream.keys["topic"])


def _held_if_slow(info: BagInfo, stream: SuggestedStream) -> SuggestedStream:
    """Hold the values of a slow topic: interpolation would wait for its next sample."""
    period_ms = stream.period_ms or info.topics[stream.keys["topic"]].stats.period_ms
    if not alignment(stream.keys["align"]).blends or 1000 / max(period_ms, 1e-3) >= SLOWEST_BLENDED_HZ:
        return stream
    return stream.held(limits(period_ms, "hold"), f"slow: {_NEWEST}")


def _held_because_late(info: BagInfo, stream: SuggestedStream) -> SuggestedStream:
    """Hold the values of a topic that is much later than the others, so that ticks do not wait for it."""
    topic = info.topics[stream.keys["topic"]]
    keys = limits(stream.period_ms or topic.stats.period_ms, "hold")
    late = wait_ms(info, replace(stream, keys={**stream.keys, "align": "hold"}))
    if late > LATE_MS / 2:
        keys["max_age_ms"] = tens(float(keys["max_age_ms"]) + late)
        why = f"late: its values come up to {late:.0f} ms after their time, and delay_ms does not wait for them"
    else:
        why = f"slower than the others: {_NEWEST}"
    return replace(stream.held(keys, why), is_held=True)


def _without_slow_cloud(info: BagInfo, stream: SuggestedStream, others: Wait) -> SuggestedStream:
    own_ms, needed_ms = delay_ms(wait_ms(info, stream)), delay_ms(others.ms)
    if "voxels" not in stream.keys or own_ms < SLOWER_CLOUD * needed_ms:
        return stream
    why = f"left out, because it is slow: it needs delay_ms {own_ms}, and the other streams {needed_ms}"
    return replace(stream, left_out=why)


def _held_if_silent(info: BagInfo, stream: SuggestedStream) -> SuggestedStream:
    """Hold the last value of a topic that is published on change rather than at a rate."""
    topic = info.topics[stream.keys["topic"]]
    stop_ns = _stop_ns(info)
    silences = _silences(topic, stream.keys["max_age_ms"], topic.stats.start_ns, stop_ns)
    silent_ns = sum(stop - start for start, stop in silences)
    if silent_ns <= OFTEN_SILENT * (stop_ns - topic.stats.start_ns):
        return stream
    return replace(stream, keys={**stream.keys, "on_invalid": "hold"}, remarks=(*stream.remarks, _HELD))


def _stop_ns(info: BagInfo) -> int:
    return max(topic.stats.stop_ns for topic in info.topics.values())  # on the timeline, as the times of each topic


def _silences(topic: TopicInfo, age_ms: float, start_ns: int, stop_ns: int) -> list[tuple[int, int]]:
    """Return the times at which a topic has no value that is young enough."""
    stats, age_ns = topic.stats, int(age_ms * 1e6)
    gaps = [(gap.start_ns, gap.start_ns + gap.length_ns) for gap in stats.gaps]
    found = [(start_ns, stats.start_ns), *((a + age_ns, b) for a, b in gaps), (stats.stop_ns + age_ns, stop_ns)]
    return [(a, b) for a, b in found if a < b]


def short_episodes(info: BagInfo, streams: Sequence[SuggestedStream]) -> str:
    """Return a warning if an export would split the recording into many short episodes; empty if not."""
    silences: list[tuple[int, int, str, str]] = []
    stop_ns = _stop_ns(info)
    used = [s for s in streams if not s.left_out and s.keys.get("on_invalid") != "hold"]
    start_ns = min((info.topics[s.keys["topic"]].stats.start_ns for s in used), default=0)
    for stream in used:
        topic = info.topics[stream.keys["topic"]]
        found = _silences(topic, stream.keys["max_age_ms"], start_ns, stop_ns)
        silences += [(a, b, stream.name, stream.keys["topic"]) for a, b in found]
    lengths, at_ns = [], start_ns
    for a, b, _, _ in sorted(silences):
        if a > at_ns:
            lengths.append((a - at_ns) / 1e9)
        at_ns = max(at_ns, b)
    lengths.append((stop_ns - at_ns) / 1e9)
    lengths = [length for length in lengths if length > 0]
    short = sum(length < SHORT_S for length in lengths)
    if short < FEWEST_SHORT or short < SHORT_SHARE * len(lengths):
        return ""
    names = [name for _, _, name, _ in silences]
    worst = max(dict.fromkeys(names), key=names.count)
    topic_name = next(topic for _, _, name, topic in silences if name == worst)
    longest = max(b - a for a, b, name, _ in silences if name == worst) / 1e6
    age = next(s.keys["max_age_ms"] for s in used if s.name == worst)
    return (
        f"an export splits this recording into about {len(lengths)} episodes, {short} of them under a second, mostly "
        f"because of the silences of {worst} ({printable(topic_name, 60)}); raise its max_age_ms to "
        f"{tens(age + longest)}, or give it `on_invalid: hold`"
    )


MAX_POSES_PER_TOPIC = 4  # maximum number of poses per topic
EFFECTORS = ("tool", "tcp", "ee", "eef", "effector", "gripper", "hand", "flange")  # in order of preference
BASES = ("base_link", "base_footprint", "base")
WORLDS = ("odom", "map", "world")  # parent frames of a moving base

Frames = Mapping[str, FrameInfo]


def suggested_poses(frames: Frames, topic: str) -> tuple[list[SuggestedStream], str]:
    """Return the pose streams of a topic, and the reason if there are none."""
    if topic == TF_STATIC:
        return [], "static transforms; pose streams and voxels.frame use them automatically"
    pairs = [*_effectors(frames), *_bases(frames)] or _moving(frames)
    pairs = [pair for pair in pairs if all(frames[f].topic in (topic, TF_STATIC) for f in _chain(frames, *pair))][
        :MAX_POSES_PER_TOPIC
    ]
    return [_stream(frames, *pair) for pair in pairs], "" if pairs else "no frame in it moves"


def _effectors(frames: Frames) -> list[tuple[str, str]]:
    """Return each end effector relative to the base; of frames fixed to each other, the one with the best name."""
    found: dict[str, tuple[int, str]] = {}  # by the moving frame to which it is fixed
    for frame in sorted(frames):
        words = set(re.split(r"[^a-z]+", frame.lower()))
        rank = next((i for i, word in enumerate(EFFECTORS) if word in words), None)
        above = upwards(frames, frame)
        carrier = next((f for f in above if f in frames and frames[f].moves), None)
        if rank is not None and carrier is not None:
            found[carrier] = min(found.get(carrier, (rank, frame)), (rank, frame))
    ends = [frame for _, frame in found.values()]
    outer = [end for end in ends if not set(ends) & set(upwards(frames, end)[1:])]  # excludes the fingers of a gripper
    pairs = [(_base_of(frames, frame), frame) for frame in sorted(outer)]
    return [pair for pair in pairs if _moves(frames, *pair)]


def _bases(frames: Frames) -> list[tuple[str, str]]:
    """Return the base relative to the world, if it moves."""
    base = next((name for name in BASES if name in frames), None)
    if base is None:
        return []
    above = upwards(frames, base)
    world = next((name for name in WORLDS if name in above), above[-1])
    return [(world, base)] if _moves(frames, world, base) else []


def _moving(frames: Frames) -> list[tuple[str, str]]:
    """Return the outermost moving frames, relative to the root of their tree."""
    carriers = {above for frame, info in frames.items() if info.moves for above in upwards(frames, frame)[1:]}
    return [(upwards(frames, f)[-1], f) for f in sorted(frames) if frames[f].moves and f not in carriers]


def _base_of(frames: Frames, frame: str) -> str:
    above = upwards(frames, frame)
    return next((name for name in BASES if name in above), above[-1])


def _chain(frames: Frames, target: str, source: str) -> list[str]:
    """Return the frames from the source up to the child of the target."""
    above = upwards(frames, source)
    return above[: above.index(target)]


def _moves(frames: Frames, target: str, source: str) -> bool:
    return any(frames[frame].moves for frame in _chain(frames, target, source))


def _stream(frames: Frames, target: str, source: str) -> SuggestedStream:
    chain = [frames[frame] for frame in _chain(frames, target, source)]
    moving = [info for info in chain if not info.is_static]
    period_ms = max(info.period_ms for info in moving)
    keys = {"frames": [target, source], **limits(period_ms, "linear")}
    stamps = {info.clock.stamp for info in moving}
    if len(stamps) == 1 and (stamp := stamps.pop()):  # transforms of which some follow the timeline are used as stamped
        keys = {"stamp": stamp, **keys}
    delays = [info.delays_ms for info in moving if info.delays_ms is not None]
    slowest = max(delays, key=lambda values: float(np.quantile(values, 0.99)), default=None)
    through = f"through {len(chain)} transforms" if len(chain) > 1 else "its transform"
    remark = f"the pose of {source} in {target}, {through}; any two frames listed by `robocache info` are possible"
    name = re.sub(r"[^a-z0-9_]", "_", source.lower()).lstrip("_0123456789") or "frame"
    return SuggestedStream(f"{name}_pose", keys, (remark,), period_ms, slowest)
