"""Selects frame poses for a first spec: end effectors and the base, or else other moving frames."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from robocache_ros.bags.frames.recorded_frames import FrameInfo, upwards
from robocache_ros.bags.suggest.spec_text import SuggestedStream
from robocache_ros.bags.suggest.timing import limits
from robocache_ros.spec import TF_STATIC

MOST = 4  # maximum number of poses per topic
EFFECTORS = ("tool", "tcp", "ee", "eef", "effector", "gripper", "hand", "flange")  # in order of preference
BASES = ("base_link", "base_footprint", "base")
WORLDS = ("odom", "map", "world")  # parent frames of a moving base

Frames = Mapping[str, FrameInfo]


def suggested_poses(frames: Frames, topic: str) -> tuple[list[SuggestedStream], str]:
    """Return the pose streams of a topic, and the reason if there are none."""
    if topic == TF_STATIC:
        return [], "static transforms; pose streams and voxels.frame use them automatically"
    pairs = [*_effectors(frames), *_bases(frames)] or _moving(frames)
    pairs = [pair for pair in pairs if all(frames[f].topic in (topic, TF_STATIC) for f in _chain(frames, *pair))][:MOST]
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
