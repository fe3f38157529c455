from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from robocache_ros.datasets import DatasetError, LeRobotTimelineDataset
from robocache_ros.formats.validate import validate
from test.fuzz.datasets import write_lerobot

SO101 = "lerobot_v30_so101"


def write_v21(folder: Path, lengths: tuple[int, ...] = (4, 1), state: Any = None) -> Path:
    """Write a LeRobot v2.1 dataset of one number."""
    (folder / "meta").mkdir(parents=True)
    (folder / "data" / "chunk-000").mkdir(parents=True)
    features = {name: {"dtype": "float32", "shape": [1]} for name in ("observation.state", "action")}
    info = {
        "codebase_version": "v2.1",
        "fps": 50,
        "features": features,
        "chunks_size": 1000,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    rows = [{"episode_index": k, "tasks": ["push"], "length": n} for k, n in enumerate(lengths)]
    (folder / "meta" / "episodes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "meta" / "tasks.jsonl").write_text('{"task_index": 0, "task": "push"}\n')
    for index, length in enumerate(lengths):
        values = np.arange(length, dtype=np.float32) if state is None else np.asarray(state, np.float32)
        vectors = pa.FixedSizeListArray.from_arrays(values, 1)
        numbers = pa.array(np.full(length, index))
        table = {"observation.state": vectors, "action": vectors, "episode_index": numbers}
        table["task_index"] = pa.array(np.zeros(length, np.int64))
        parquet.write_table(pa.table(table), folder / f"data/chunk-000/episode_{index:06d}.parquet")
    return folder


def test_tasks_and_lengths_are_those_of_the_real_files(real: Path) -> None:
    dataset = LeRobotTimelineDataset(real / SO101, ["language"], target_hz=30)
    episodes = parquet.read_table(real / SO101 / "meta/episodes/chunk-000/file-000.parquet").to_pydict()
    assert [dataset[k]["length"] for k in range(len(dataset))] == episodes["length"]
    assert {dataset[k]["language"] for k in range(len(dataset))} == {"pick and place"}


def test_stamps_are_nominal(tmp_path: Path) -> None:
    sample = LeRobotTimelineDataset(write_v21(tmp_path / "d"))[0]
    assert sample["tick_ns"].tolist() == [0, 20_000_000, 40_000_000, 60_000_000]
    assert not sample["measured"].any()


def test_version_2_1_has_a_file_per_episode(tmp_path: Path) -> None:
    dataset = LeRobotTimelineDataset(write_v21(tmp_path / "d"))
    assert [dataset[k]["proprio"][:, 0].tolist() for k in range(2)] == [[0, 1, 2, 3], [0]]
    assert dataset[1]["language"] == "push"


@pytest.mark.parametrize("kind", ["lerobot", "lerobot21"])
def test_some_episodes_are_chosen_by_their_numbers(kind: str, exported: Callable[[str], Path]) -> None:
    whole = LeRobotTimelineDataset(exported("none") / kind)
    chosen = LeRobotTimelineDataset(exported("none") / kind, episodes=[1])
    assert (len(whole), len(chosen)) == (2, 1)
    assert chosen[0]["tick_ns"].equal(whole[1]["tick_ns"])
    assert chosen[0]["fused"].equal(whole[1]["fused"])


@pytest.mark.parametrize(
    ("episodes", "problem"),
    [
        ([2], "2 is not one of the 2 of this dataset"),
        ([], "none, or one of them twice"),
        ([0, 0], "none, or one of them twice"),
    ],
)
def test_episodes_that_a_dataset_lacks_are_refused(episodes: list[int], problem: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"episodes: {problem}"):
        LeRobotTimelineDataset(write_v21(tmp_path / "d"), episodes=episodes)


def test_images_in_several_row_groups_are_read_and_checked(tmp_path: Path) -> None:
    for name, rows in (("whole", 1000), ("parts", 4)):  # repeated images are dictionaries, one in each row group
        write_lerobot(tmp_path / name)
        path = tmp_path / name / "data/chunk-000/file-000.parquet"
        table = parquet.read_table(path)
        repeated = table.take([0, 1, 1, 1, 4, 4, *range(6, 12)])
        image = table.column_names.index("observation.images.front")
        table = table.set_column(image, table.schema.field(image), repeated.column(image))
        parquet.write_table(table, path, row_group_size=rows)
    whole, parts = (LeRobotTimelineDataset(tmp_path / name) for name in ("whole", "parts"))
    assert [parts[index]["vision"].equal(whole[index]["vision"]) for index in range(2)] == [True, True]
    found = [[str(one) for one in validate(tmp_path / name, decode=True)[0].found] for name in ("whole", "parts")]
    assert found[0] == found[1]
    assert not any("image" in one for one in found[1])


def test_an_episode_of_another_length_than_stated_is_refused(tmp_path: Path) -> None:
    folder = write_v21(tmp_path / "d", (3,))
    path = folder / "data/chunk-000/episode_000000.parquet"
    parquet.write_table(parquet.read_table(path).slice(0, 2), path)
    with pytest.raises(DatasetError, match="episode 0: 2 rows, not 3"):
        LeRobotTimelineDataset(folder)[0]


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    folder = write_v21(tmp_path / "d")
    info = json.loads((folder / "meta" / "info.json").read_text())
    (folder / "meta" / "info.json").write_text(json.dumps({**info, "codebase_version": "v1.6"}))
    with pytest.raises(DatasetError, match=r"version v1.6"):
        LeRobotTimelineDataset(folder)


def test_a_camera_that_is_not_there_is_refused(real: Path) -> None:
    with pytest.raises(DatasetError, match="no front; there are wrist"):
        LeRobotTimelineDataset(real / SO101, cameras=["front"])


def test_without_vision_no_video_is_read(real: Path) -> None:
    sample = LeRobotTimelineDataset(real / SO101, ["proprio"])[0]
    assert "vision" not in sample
    assert torch.equal(sample["fused"], torch.cat([sample["proprio"], sample["actions"]], dim=1))


def test_a_path_that_would_fill_the_memory_is_not_formatted(tmp_path: Path) -> None:
    folder = write_v21(tmp_path / "d")
    info = json.loads((folder / "meta" / "info.json").read_text())
    (folder / "meta" / "info.json").write_text(json.dumps({**info, "data_path": "{episode_index:0999999999d}.parquet"}))
    with pytest.raises(DatasetError, match="not there"):
        LeRobotTimelineDataset(folder)[0]
