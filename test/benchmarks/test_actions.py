"""The counts that the page on actions states."""

import json
from pathlib import Path

from benchmarks.actions import METHODS, ages, differences, fused
from robocache_ros.bags.reader import Bag
from robocache_ros.spec import load_spec

ROOT = Path(__file__).parents[2]


def test_the_recorded_counts_are_those_of_the_recording() -> None:
    spec = load_spec(ROOT / "config" / "panda_lift.yaml")
    with Bag(ROOT / "test" / "data" / "panda_lift") as bag:
        frames = fused(bag, spec, spec.stream("action"))

    recorded = json.loads((ROOT / "benchmarks" / "results" / "actions.json").read_text())
    assert recorded["pairs"] == list(differences(frames, spec.stream("action")))
    assert recorded["age_ms"] == {name: ages(frames, name) for name in METHODS}
