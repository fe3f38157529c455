from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch

from robocache_ros.datasets import DatasetError, LeRobotTimelineDataset
from robocache_ros.formats.validate import validate
from test.datasets.small import change_info, write_lerobot

V3, V21 = "data/chunk-000/file-000.parquet", "data/chunk-000/episode_000000.parquet"


@pytest.fixture
def v21(tmp_path: Path) -> Path:
    """A dataset of version 2.1, which has a file per episode: one of four steps and one of one, at 50 Hz."""
    return write_lerobot(tmp_path / "d", media="image", version="v2.1", lengths=(4, 1))


def test_a_dataset_of_version_2_1_has_its_values_at_nominal_stamps(v21: Path) -> None:
    dataset = LeRobotTimelineDataset(v21, ["proprio", "language"])  # without vision, no image is read
    for sample, start, length in zip((dataset[0], dataset[1]), (0, 1), (4, 1), strict=True):
        expected = start + torch.arange(3 * length).view(length, 3) / 7
        assert sample["proprio"].equal(expected)
        assert sample["actions"].equal(-expected)
        assert sample["fused"].equal(torch.cat([expected, -expected], dim=1))
        assert sample["tick_ns"].tolist() == [20_000_000 * step for step in range(length)]
        assert not sample["measured"].any()
        assert sample["language"] == "lift"
        assert "vision" not in sample


@pytest.mark.parametrize("kind", ["lerobot", "lerobot21"])
def test_some_episodes_are_chosen_by_their_numbers(kind: str, exported: Callable[[str], Path]) -> None:
    whole = LeRobotTimelineDataset(exported("none") / kind)
    chosen = LeRobotTimelineDataset(exported("none") / kind, episodes=[1])
    assert (len(whole), len(chosen)) == (2, 1)
    assert chosen[0]["tick_ns"].equal(whole[1]["tick_ns"])
    assert chosen[0]["fused"].equal(whole[1]["fused"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"episodes": [2]}, "episodes: 2 is not one of the 2 of this dataset"),
        ({"episodes": []}, "episodes: none, or one of them twice"),
        ({"episodes": [0, 0]}, "episodes: none, or one of them twice"),
        ({"cameras": ["wrist"]}, "cameras: no wrist; there are front"),
    ],
)
def test_episodes_and_cameras_that_a_dataset_lacks_are_refused(
    options: dict[str, Any], problem: str, v21: Path
) -> None:
    with pytest.raises(DatasetError, match=problem):
        LeRobotTimelineDataset(v21, **options)[0]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"codebase_version": "v1.6"}, "version v1.6"),
        ({"data_path": "{episode_index:0999999999d}.parquet"}, "not there"),  # a path that would fill the memory
    ],
)
def test_an_unknown_version_and_a_path_of_any_length_are_refused(
    changes: dict[str, Any], problem: str, v21: Path
) -> None:
    change_info(v21, **changes)
    with pytest.raises(DatasetError, match=problem):
        LeRobotTimelineDataset(v21)[0]


def test_an_episode_of_another_length_than_stated_is_refused(v21: Path) -> None:
    parquet.write_table(parquet.read_table(v21 / V21).slice(0, 2), v21 / V21)
    with pytest.raises(DatasetError, match="episode 0: 2 rows, not 4"):
        LeRobotTimelineDataset(v21)[0]


def test_images_in_several_row_groups_are_read_and_checked(tmp_path: Path) -> None:
    for name, rows in (("whole", 1000), ("parts", 4)):  # repeated images are dictionaries, one in each row group
        path = write_lerobot(tmp_path / name) / V3
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
