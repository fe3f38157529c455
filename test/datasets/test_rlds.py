from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.datasets import DatasetError, RTXDataset, Window
from test.datasets.conftest import STEPS, episode, features_dict, picture, tensor, write_tfds


def test_a_split_without_its_files_is_refused_with_one_that_has_them(real: Path) -> None:
    with pytest.raises(DatasetError, match=r"no file of the split train is there; split='val' has files"):
        RTXDataset(real / "rlds_bridge")


def test_episodes_are_in_the_order_of_the_shards(tmp_path: Path) -> None:
    write_tfds(tmp_path / "d", STEPS, [episode(3, 10.0 * k) for k in range(5)], shards=2)
    starts = [RTXDataset(tmp_path / "d")[k]["proprio"][0, 0].item() for k in range(5)]
    assert starts == [0, 10, 20, 30, 40]


def test_files_in_gzip_are_read_in_any_order(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", STEPS, [episode(3, 10.0 * k) for k in range(4)])
    file = next(folder.glob("*.tfrecord*"))
    file.write_bytes(gzip.compress(file.read_bytes()))
    dataset = RTXDataset(folder)
    assert [dataset[k]["proprio"][0, 0].item() for k in (2, 0, 3, 1)] == [20, 0, 30, 10]


def test_a_folder_of_several_datasets_is_one_after_the_other(tmp_path: Path) -> None:
    write_tfds(tmp_path / "a" / "1.0.0", STEPS, [episode(2)])
    write_tfds(tmp_path / "b" / "0.9.0", STEPS, [episode(2, 5.0)])
    write_tfds(tmp_path / "b" / "0.10.0", STEPS, [episode(2, 7.0)])
    dataset = RTXDataset(tmp_path)
    assert [dataset[k]["proprio"][0, 0].item() for k in range(len(dataset))] == [0, 7]


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    given = episode(3)
    given["observation/image"][1] = picture(1, "jpeg")[:-30]
    folder = write_tfds(tmp_path / "d", STEPS, [given])
    with pytest.raises(DatasetError, match=r"record 0: vision/image: image 1: .*end"):
        RTXDataset(folder)[0]


def test_nan_is_refused_by_row_and_column(tmp_path: Path) -> None:
    given = episode(3)
    given["observation/state"][2, 1] = np.nan
    folder = write_tfds(tmp_path / "d", STEPS, [given])
    with pytest.raises(DatasetError, match="steps/observation/state: row 2, column 1 is not finite"):
        RTXDataset(folder)[0]


def test_an_episode_of_one_step_is_one_tick(tmp_path: Path) -> None:
    sample = RTXDataset(write_tfds(tmp_path / "d", STEPS, [episode(1, 4.0)]))[0]
    assert (sample["length"], sample["proprio"].tolist(), sample["valid"].min()) == (1, [[4, -4]], 1)


def test_an_episode_without_steps_is_refused(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", STEPS, [episode(0)])
    with pytest.raises(DatasetError, match=r"record 0: .* 0 steps"):
        RTXDataset(folder)[0]


def test_a_dataset_of_unknown_rate_needs_one(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", STEPS, [episode(3)], name="mine")
    with pytest.raises(DatasetError, match="rate of mine is not known"):
        RTXDataset(folder)
    assert RTXDataset(folder, rate_hz=25)[0]["length"] == 5


def test_features_are_found_by_the_conventions_of_open_x(tmp_path: Path) -> None:
    observation = {
        "joints": tensor("float32", 2),
        "gripper": tensor("float32"),
        "natural_language_embedding": tensor("float32", 4),
        "natural_language_instruction": {"text": {}},
        "mode": tensor("int64"),
    }
    steps = {
        "observation": features_dict(observation),
        "action": features_dict({"world_vector": tensor("float32", 3), "terminate_episode": tensor("int64", 3)}),
    }
    given = {
        "observation/joints": np.ones((2, 2), np.float32),
        "observation/gripper": np.zeros(2, np.float32),
        "observation/natural_language_embedding": np.ones((2, 4), np.float32),
        "observation/natural_language_instruction": [b"push", b"push"],
        "observation/mode": np.zeros(2, np.int64),
        "action/world_vector": np.full((2, 3), 2, np.float32),
        "action/terminate_episode": np.zeros((2, 3), np.int64),
    }
    folder = write_tfds(tmp_path / "d", steps, [given])

    streams = RTXDataset(folder).stream_names()
    mapped = RTXDataset(folder, features={"proprio": ["observation/mode"]})

    assert streams == ("observation/joints", "observation/gripper", "actions")
    assert RTXDataset(folder)[0]["language"] == "push"
    assert mapped[0]["proprio"].shape[1] == 1


def test_a_mapping_to_a_feature_that_is_not_there_is_refused(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", STEPS, [episode(2)])
    with pytest.raises(DatasetError, match="has no feature steps/observation/joints"):
        RTXDataset(folder, features={"proprio": ["observation/joints"]})


def test_windows_need_no_image_to_be_counted(tmp_path: Path) -> None:
    given = episode(3)
    given["observation/image"] = [b"damaged"] * 3
    folder = write_tfds(tmp_path / "d", STEPS, [given, given])
    assert len(RTXDataset(folder, target_hz=5, window=Window())) == 6


def test_more_records_than_the_dataset_states_are_refused(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", STEPS, [episode(2), episode(2)])
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = ["1"]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(DatasetError, match="has 2 records, not 1"):
        RTXDataset(folder)[0]
