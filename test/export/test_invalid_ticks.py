"""Ticks at which a stream has no value, in a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.test_lerobot import Made, columns, meta


def test_a_gap_ends_an_episode_and_what_follows_begins_another(made: Made) -> None:
    rows = columns(made("none"))
    assert (np.array(rows["robocache.valid"]) > 0).all()
    ticks, episodes = np.array(rows["robocache.tick_ns"]), np.array(rows["episode_index"])
    steps, same = np.diff(ticks), np.diff(episodes) == 0
    assert (steps[same] == 20_000_000).all()
    assert steps[~same][0] == 6 * 20_000_000  # five ticks without joints are left out


def test_masked_ticks_are_stored_as_zeros_and_marked(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    result = export(bags[:1], spec, tmp_path / "out", DatasetOptions(media="none", on_invalid="mask"))
    rows = columns(result)
    kept = [stream.name for stream in spec.streams if stream.kind != "image"]
    states = np.array(rows["robocache.valid"])[:, kept.index("joint_position")]
    assert ((states == 0).sum(), (states == 2).sum()) == (5, 3)
    assert (np.array(rows["observation.state"])[states == 0, :7] == 0).all()
    assert (np.diff(rows["robocache.tick_ns"]) == 20_000_000).all()


def test_masked_ticks_do_not_count_into_the_statistics(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    result = export(bags[:1], spec, tmp_path / "out", DatasetOptions(media="none", on_invalid="mask"))
    rows = columns(result)
    kept = [stream.name for stream in spec.streams if stream.kind != "image"]
    states = np.array(rows["robocache.valid"])[:, kept.index("joint_position")]
    joints = np.array(rows["observation.state"])[states > 0, :7]
    stats = meta(result, "stats.json")["observation.state"]
    assert stats["min"][:7] == joints.min(0).tolist()
    assert stats["std"][:7] == pytest.approx(joints.std(0).tolist(), rel=1e-6)


def test_a_command_that_is_held_past_its_age_is_not_counted_as_aligned(
    bags: list[Path], spec: FusionSpec, tmp_path: Path
) -> None:
    streams = [replace(s, max_age_ms=20.0, on_invalid="hold") if s.name == "action" else s for s in spec.streams]
    result = export(bags[:1], replace(spec, streams=tuple(streams)), tmp_path / "out", DatasetOptions(media="none"))
    rows = columns(result)
    command = [stream.name for stream in spec.streams if stream.kind != "image"].index("action")
    states, ages_ns = (np.array(rows[f"robocache.{name}"])[:, command] for name in ("valid", "age_ns"))
    assert set(states.tolist()) == {1, 2}
    assert ((states == 2) == (ages_ns > 20_000_000)).all()


def test_held_ticks_repeat_the_last_value_with_its_age(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    result = export(bags[:1], spec, tmp_path / "out", DatasetOptions(media="none", on_invalid="hold"))
    rows = columns(result)
    kept = [stream.name for stream in spec.streams if stream.kind != "image"]
    joint = kept.index("joint_position")
    held = np.flatnonzero(np.array(rows["robocache.valid"])[:, joint] == 2)
    assert len(held) == 8  # 5 ticks more than within max_age_ms
    assert set(rows["episode_index"]) == {0}
    joints = np.array(rows["observation.state"])[held, :7]
    assert (joints == joints[0]).all()
    assert (np.diff(np.array(rows["robocache.age_ns"])[held, joint]) == 20_000_000).all()
