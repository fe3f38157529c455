"""Which command is the action of a tick with `hold`, `nearest` and `next`: counted in a recording, and drawn.

Run: python -m benchmarks.actions [--recording test/data/panda_lift] [--spec config/panda_lift.yaml]

Writes benchmarks/results/actions.json and docs/images/actions.png.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.engine.frames import Frames
from robocache_ros.extras import need
from robocache_ros.spec import FusionSpec, StreamSpec, load_spec
from robocache_ros.units import NS_PER_MS

ROOT = Path(__file__).parents[1]
METHODS = ("hold", "nearest", "next")
COLORS = {"hold": "#e07a1f", "nearest": "#6b7280", "next": "#0b7a75"}
DELAYS_MS = tuple(range(0, 61, 2))
SHOWN_MS = 240  # of the recording, from its middle on


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recording", type=Path, default=ROOT / "test/data/panda_lift", help="A recording.")
    parser.add_argument("--spec", type=Path, default=ROOT / "config/panda_lift.yaml", help="Its spec, with an action.")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results", help="Folder of actions.json.")
    parser.add_argument("--images", type=Path, default=ROOT / "docs/images", help="Folder of actions.png.")
    given = parser.parse_args()
    spec = load_spec(given.spec)
    action = next(stream for stream in spec.vectors if stream.role == "action")
    with Bag(given.recording) as bag:
        frames = fused(bag, spec, action)
        delayed = [fused(bag, spec, action, delay, "deployed") for delay in DELAYS_MS]
    found = {
        "recording": given.recording.name,
        "topic": action.topic,
        "ticks": len(frames),
        "ticks_without_an_action": {name: int((of(frames.valid, name) == 0).sum()) for name in METHODS},
        "age_ms": {name: ages(frames, name) for name in METHODS},
        "pairs": list(differences(frames, action)),
        "delay_ms": DELAYS_MS,
        "share_as_ideal": {name: [unchanged(frames, each, name) for each in delayed] for name in METHODS},
    }
    (given.results / "actions.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(given.images / "actions.png", frames, found)
    print(json.dumps(found, indent=1))


def fused(bag: Bag, spec: FusionSpec, action: StreamSpec, delay_ms: float = 100, visibility: str = "ideal") -> Frames:
    """The action at every tick of a recording, once by each method."""
    streams = tuple(replace(action, name=name, align=name) for name in METHODS)
    spec = replace(spec, streams=streams, delay_ms=delay_ms, lead_ms=0)
    parts = list(BagRun(bag, spec, visibility=visibility, trim=False).frames())
    torch = need("torch", "export")
    arrays = (np.concatenate([getattr(p, name) for p in parts]) for name in ("ticks_ns", "valid", "age_ns"))
    ticks_ns, valid, age_ns = arrays
    return Frames(ticks_ns, torch.cat([part.fused for part in parts]), valid, age_ns, {})


def of(columns: NDArray[Any], method: str) -> NDArray[Any]:
    """(T,) column of a method."""
    column: NDArray[Any] = columns[:, METHODS.index(method)]
    return column


def unchanged(ideal: Frames, deployed: Frames, method: str) -> float:
    """The share of ticks, of those with an action, that have the same action with less delay."""
    known = of(ideal.valid, method) > 0
    same = (of(deployed.valid, method) > 0) & (of(deployed.age_ns, method) == of(ideal.age_ns, method))
    return round(float(same[known].mean()), 4)


def ages(frames: Frames, method: str) -> dict[str, float]:
    """Mean, least and greatest age of the action where each method has one, in ms; negative if it is after the tick."""
    age = of(frames.age_ns, method)[(frames.valid > 0).all(axis=1)] / NS_PER_MS
    return {name: round(float(getattr(age, name)()), 2) for name in ("mean", "min", "max")}


def differences(frames: Frames, action: StreamSpec) -> Iterator[dict[str, Any]]:
    """How many actions two methods give differently, among the ticks at which each method has one."""
    values = frames.fused.numpy()[(frames.valid > 0).all(axis=1)].reshape(-1, len(METHODS), action.dim)
    spread = values[:, 0].std(axis=0)
    for one, other in combinations(range(len(METHODS)), 2):
        apart = np.abs(values[:, one] - values[:, other])
        rows = int((apart > 0).any(axis=1).sum())
        far = int((apart > 0.1 * spread).any(axis=1).sum())
        methods = f"{METHODS[one]}, {METHODS[other]}"
        yield {"methods": methods, "ticks": len(values), "differ": rows, "by_a_tenth_of_the_deviation": far}


def draw(path: Path, frames: Frames, found: dict[str, Any]) -> None:
    """Draw the command of each tick by each method, and the share of ticks that have it, by delay."""
    need("matplotlib", "export").use("Agg")
    plt = need("matplotlib.pyplot", "export")
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 3.8), width_ratios=[1.7, 1], layout="constrained")
    first = len(frames) // 2
    during = np.arange(first, first + round(SHOWN_MS / 20))
    start_ns = frames.ticks_ns[first]
    ticks = (frames.ticks_ns[during] - start_ns) / NS_PER_MS
    for row, name in enumerate(METHODS):
        stamps = ticks - of(frames.age_ns, name)[during] / NS_PER_MS
        left.plot([ticks, stamps], [[row - 0.25], [row + 0.25]] * np.ones(len(ticks)), "-", color=COLORS[name], lw=1.2)
        left.plot(ticks, np.full(len(ticks), row - 0.25), "o", color="#1f2430", ms=3.5)
        left.plot(stamps, np.full(len(ticks), row + 0.25), "|", color=COLORS[name], ms=13, mew=2)
    left.set_yticks(range(len(METHODS)), METHODS)
    left.invert_yaxis()
    left.set_xlabel("ms")
    left.set_title("each tick (dot), and the command that is its action (|)", loc="left", fontsize=10)
    for name in METHODS:
        shares = np.array(found["share_as_ideal"][name]) * 100
        right.plot(DELAYS_MS, shares, color=COLORS[name], drawstyle="steps-post", label=name)
    right.set_xlabel("delay_ms")
    right.set_ylabel("% of the ticks")
    right.set_title("where this command has arrived on the robot", loc="left", fontsize=10)
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
