"""A part of a recording has the ticks that the complete recording has there, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.engine.frames import Frames
from robocache_ros.spec import FusionSpec, load_spec

ROOT = Path(__file__).parents[3]
S = 10**9


@pytest.fixture(scope="module")
def spec() -> FusionSpec:
    complete = load_spec(ROOT / "config" / "panda_lift.yaml")
    chosen = [s for s in complete.streams if s.kind == "vector"] + [complete.stream("front")]
    held = [replace(s, on_invalid="hold") if s.name == "action" else s for s in chosen]
    return replace(complete, streams=tuple(held))


def frames(
    spec: FusionSpec,
    start_ns: int | None = None,
    stop_ns: int | None = None,
    *,
    media: bool = True,
    sees: str = "ideal",
) -> list[Frames]:
    with Bag(ROOT / "test" / "data" / "panda_lift") as bag:
        low, high = (None if ns is None else bag.start_ns + ns for ns in (start_ns, stop_ns))
        run = BagRun(bag, spec, visibility=sees, trim=False, start_ns=low, stop_ns=high, media=media)
        return list(run.frames())


def column(parts: list[Frames], name: str) -> np.ndarray:
    return np.concatenate([np.asarray(getattr(part, name)) for part in parts])


@pytest.mark.parametrize("sees", ["ideal", "deployed"])
def test_the_ticks_of_a_part_are_those_of_the_complete_recording(spec: FusionSpec, sees: str) -> None:
    complete, part = frames(spec, sees=sees), frames(spec, 4 * S, 5 * S, sees=sees)

    all_ticks, ticks = column(complete, "ticks_ns"), column(part, "ticks_ns")
    rows = np.searchsorted(all_ticks, ticks)
    assert len(ticks) == 50
    for name in ("ticks_ns", "fused", "valid", "age_ns"):
        assert np.array_equal(column(complete, name)[rows], column(part, name)), name
    whole = torch.cat([frame.media["front"] for frame in complete])
    assert torch.equal(whole[rows], torch.cat([frame.media["front"] for frame in part]))


def test_adjacent_parts_have_every_tick_once(spec: FusionSpec) -> None:
    bounds = (None, 2 * S, 4 * S + 10**7, None)
    parts = [frame for low, high in pairwise(bounds) for frame in frames(spec, low, high, media=False)]

    assert np.array_equal(column(parts, "ticks_ns"), column(frames(spec, media=False), "ticks_ns"))


def test_without_media_the_states_are_the_same(spec: FusionSpec) -> None:
    complete, states = frames(spec), frames(spec, media=False)

    for name in ("ticks_ns", "fused", "valid", "age_ns"):
        assert np.array_equal(column(complete, name), column(states, name)), name
    assert sum(part.media["front"].numel() for part in states) == 0
