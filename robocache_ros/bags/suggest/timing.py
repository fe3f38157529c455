"""Rates, gaps and delays of topics, and poses, for a suggested spec."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from robocache_ros.alignments import alignment
from robocache_ros.bags.clocks import LIMIT_NS
from robocache_ros.bags.describe import BagInfo, FrameInfo, TopicInfo, upwards
from robocache_ros.bags.suggest.spec_text import SuggestedStream
from robocache_ros.errors import printable
from robocache_ros.spec import TF_STATIC

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
