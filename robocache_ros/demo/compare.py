"""Compares live ticks with the ticks computed offline from the same recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from robocache_ros import ops
from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.demo.live import Tick, kept
from robocache_ros.engine.frames import Frames
from robocache_ros.engine.fused_frame import split_window
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.layout import Layout


@dataclass(frozen=True)
class Comparison:
    """Result of the comparison of live ticks with offline ticks."""

    expected: int  # number of offline ticks
    compared: int  # number of offline ticks that were also published live
    differing: tuple[int, ...]  # tick_ns of ticks that differ in any bit

    @property
    def same(self) -> bool:
        """Whether no tick differs. Up to 10 ticks may be missing at the ends, if /clock starts late or ends early."""
        return not self.differing and self.compared >= self.expected - 10


def compare(live: dict[int, Tick], frames: Frames, spec: FusionSpec) -> Comparison:
    """Compare published ticks with the frames of the recording, bit for bit."""
    expected = dict(ticks(frames, spec))
    both = [tick_ns for tick_ns in live if tick_ns in expected]
    differing = tuple(tick_ns for tick_ns in both if live[tick_ns] != expected[tick_ns])
    return Comparison(len(expected), len(both), differing)


def ticks(frames: Frames, spec: FusionSpec) -> Iterator[tuple[int, Tick]]:
    """Yield each frame as a time and the tick that a policy client would receive."""
    layout, rows = Layout(spec), frames.rows()
    for index, tick_ns in enumerate(frames.ticks_ns.tolist()):
        frame = split_window(layout, tick_ns, rows[index : index + 1])
        for stream in spec.media:
            tensor = frames.media[stream.name][index]
            if stream.kind == "image" and tensor.dtype == torch.uint8:
                tensor = ops.normalize_image(tensor)
            frame.tensors[stream.name] = tensor
        yield tick_ns, kept(frame, spec)


def recorded(bag: Path, spec: FusionSpec) -> Frames:
    """Return all frames of a recording with `deployed` visibility, as on the robot."""
    with Bag(bag) as opened:
        parts = list(BagRun(opened, spec, visibility="deployed", trim=False).frames())
    return Frames(
        np.concatenate([part.ticks_ns for part in parts]),
        torch.cat([part.fused for part in parts]),
        np.concatenate([part.valid for part in parts]),
        np.concatenate([part.age_ns for part in parts]),
        {stream.name: torch.cat([part.media[stream.name] for part in parts]) for stream in spec.media},
    )
