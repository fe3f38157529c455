"""Splits written with NumPy as CALVIN's recorder and its annotator write them, read value by value.

A compressed npz file per step with all cameras; ranges from a list of pairs; annotations as a pickled dictionary, whose
ranges are pairs of NumPy's integers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.datasets import CALVINDataset

LENGTHS = (9, 5, 1)
TASKS = ("open_drawer", "lift_red_block_table", "open_drawer")
TEXTS = ("pull the handle", "lift the red block", "open the drawer")
RANGES = ((2, 6), (9, 12), (14, 14))


@pytest.fixture(scope="module")
def steps() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "actions": rng.normal(size=7),
            "rel_actions": rng.uniform(-1, 1, 7),
            "robot_obs": rng.normal(size=15),
            "scene_obs": rng.normal(size=24),
            "rgb_static": rng.integers(0, 256, (200, 200, 3), np.uint8),
            "rgb_gripper": rng.integers(0, 256, (84, 84, 3), np.uint8),
            "rgb_tactile": rng.integers(0, 256, (160, 120, 6), np.uint8),
            "depth_static": rng.random((200, 200), np.float32),
            "depth_gripper": rng.random((84, 84), np.float32),
            "depth_tactile": rng.random((160, 120, 2), np.float32),
        }
        for _ in range(sum(LENGTHS))
    ]


@pytest.fixture(scope="module")
def split(steps: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calvin") / "training"
    (folder / "lang_annotations").mkdir(parents=True)
    for counter, arrays in enumerate(steps):
        np.savez_compressed(folder / f"episode_{counter:07d}.npz", **arrays)
    np.save(folder / "ep_lens.npy", np.array(LENGTHS))
    last = np.cumsum(LENGTHS) - 1
    first = [0, *list(last + 1)[:-1]]
    np.save(folder / "ep_start_end_ids.npy", list(zip(first, last, strict=True)))
    np.save(folder / "scene_info.npy", {"calvin_scene_D": [0, sum(LENGTHS) - 1]}, allow_pickle=True)
    embeddings = np.random.default_rng(1).normal(size=(3, 1, 384)).astype(np.float32)
    indices = [(np.int64(first), np.int64(last)) for first, last in RANGES]
    reported: Any = {
        "language": {"ann": list(TEXTS), "task": list(TASKS), "emb": embeddings},
        "info": {"episodes": [], "indx": indices},
    }
    np.save(folder / "lang_annotations" / "auto_lang_ann.npy", reported)
    return folder


def assert_same(sample: dict[str, Any], steps: list[dict[str, Any]], actions: str) -> None:
    assert np.array_equal(sample["proprio"], np.stack([step["robot_obs"] for step in steps]).astype(np.float32))
    assert np.array_equal(sample["actions"], np.stack([step[actions] for step in steps]).astype(np.float32))
    for camera in ("static", "gripper"):
        assert np.array_equal(sample[f"vision/{camera}"], np.stack([step[f"rgb_{camera}"] for step in steps])), camera


def test_every_value_of_the_annotated_ranges_is_the_written_one(split: Path, steps: list[dict[str, Any]]) -> None:
    dataset = CALVINDataset(split.parent, target_hz=30)

    assert len(dataset) == len(RANGES)
    for index, (first, last) in enumerate(RANGES):
        sample = dataset[index]
        assert_same(sample, steps[first : last + 1], "rel_actions")
        assert sample["language"] == TEXTS[index]


def test_every_value_of_the_recordings_is_the_written_one(split: Path, steps: list[dict[str, Any]]) -> None:
    dataset = CALVINDataset(split, tasks=[], actions="actions", target_hz=30)
    ends = np.cumsum(LENGTHS)

    assert len(dataset) == len(LENGTHS)
    for index, (end, length) in enumerate(zip(ends, LENGTHS, strict=True)):
        assert_same(dataset[index], steps[end - length : end], "actions")


def test_a_task_selects_its_ranges(split: Path) -> None:
    dataset = CALVINDataset(split, tasks=["open_drawer"], cameras=[], target_hz=30)

    assert [dataset[index]["language"] for index in range(len(dataset))] == ["pull the handle", "open the drawer"]
