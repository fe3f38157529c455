"""RLDS and TFDS: the records of each episode, and every kind of feature."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.datasets import DatasetError, RTXDataset, Window
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.rlds.read import TfdsDataset
from test.datasets.small import episode, features_dict, sequence, tensor, write_tfds


def test_a_split_without_its_files_is_refused_with_one_that_has_them(real):
    with pytest.raises(DatasetError, match=r"no file of the split train is there; split='val' has files"):
        RTXDataset(real / "rlds_bridge")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "template", [{}, {"filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"}], ids=str
)
def test_episodes_are_in_the_order_of_the_shards(compressed, template, tmp_path):
    folder = write_tfds(tmp_path / "d", [episode(1, 10.0 * k) for k in range(5)], shards=2, **template)
    for file in folder.glob("*.tfrecord*") if compressed else ():
        file.write_bytes(gzip.compress(file.read_bytes()))
    dataset = RTXDataset(folder)
    assert [dataset[k]["proprio"].tolist() for k in (2, 0, 4, 1, 3)] == [[[v, -v]] for v in (20, 0, 40, 10, 30)]


def test_a_folder_of_several_datasets_is_one_after_the_other(tmp_path):
    write_tfds(tmp_path / "a" / "1.0.0", [episode(2)])
    write_tfds(tmp_path / "b" / "0.9.0", [episode(2, 5.0)])
    write_tfds(tmp_path / "b" / "0.10.0", [episode(2, 7.0)])
    dataset = RTXDataset(tmp_path)
    assert [dataset[k]["proprio"][0, 0].item() for k in range(len(dataset))] == [0, 7]


NOT_FINITE = {**episode(3), "observation/state": np.array([[0, 0], [1, 1], [2, np.nan]], np.float32)}


@pytest.mark.parametrize(
    ("episodes", "options", "problem"),
    [
        ([NOT_FINITE], {}, "steps/observation/state: row 2, column 1 is not finite"),
        ([episode(0)], {}, "record 0: .* 0 steps"),
        ([episode(2)], {"features": {"proprio": ["observation/joints"]}}, "has no feature steps/observation/joints"),
        ([episode(2)], {"split": "test"}, "no split test; there are train"),
    ],
)
def test_what_cannot_be_read_is_named(episodes, options, problem, tmp_path):
    with pytest.raises(DatasetError, match=problem):
        RTXDataset(write_tfds(tmp_path / "d", episodes), **options)[0]


def test_more_records_than_the_dataset_states_are_refused(tmp_path):
    folder = write_tfds(tmp_path / "d", [episode(2), episode(2)], shardLengths=["1"])
    with pytest.raises(DatasetError, match="has 2 records, not 1"):
        RTXDataset(folder)[0]


def test_a_dataset_of_unknown_rate_needs_one(tmp_path):
    folder = write_tfds(tmp_path / "d", [episode(3)], name="mine")
    with pytest.raises(DatasetError, match="rate of mine is not known"):
        RTXDataset(folder)
    assert RTXDataset(folder, rate_hz=25)[0]["length"] == 5


def test_features_are_found_by_the_conventions_of_open_x(tmp_path):
    features: dict[str, dict[str, Any]] = {  # of a step, with its values
        "observation": {
            "joints": (tensor("float32", 2), np.ones((2, 2), np.float32)),
            "gripper": (tensor("float32"), np.zeros(2, np.float32)),
            "natural_language_embedding": (tensor("float32", 4), np.ones((2, 4), np.float32)),
            "natural_language_instruction": ({"text": {}}, [b"push", b"push"]),
            "mode": (tensor("int64"), np.zeros(2, np.int64)),
        },
        "action": {
            "world_vector": (tensor("float32", 3), np.full((2, 3), 2, np.float32)),
            "terminate_episode": (tensor("int64", 3), np.zeros((2, 3), np.int64)),
        },
    }
    steps = {part: features_dict({name: kind for name, (kind, _) in each.items()}) for part, each in features.items()}
    given = {f"{part}/{name}": values for part, each in features.items() for name, (_, values) in each.items()}
    folder = write_tfds(tmp_path / "d", [given], steps)
    found, mapped = RTXDataset(folder), RTXDataset(folder, features={"proprio": ["observation/mode"]})
    assert found.stream_names() == ("observation/joints", "observation/gripper", "actions")
    assert found[0]["language"] == "push"
    assert mapped[0]["proprio"].shape[1] == 1


def test_windows_need_no_image_to_be_counted(tmp_path):
    given = episode(3)
    given["observation/image"] = [b"damaged"] * 3
    folder = write_tfds(tmp_path / "d", [given, given])
    assert len(RTXDataset(folder, target_hz=5, window=Window())) == 6


# Every kind of feature, and what is wrong with a dataset.

STEPS = 3
GRIDS = np.arange(STEPS * 4, dtype="<u2").reshape(STEPS, 2, 2)
VALUES = {
    "state": tensor("float64", 2),
    "first": tensor("bool"),
    "grid": tensor("uint16", 2, 2, encoding="zlib"),
    "text": {"text": {}},
    "image": {"image": {"encodingFormat": "png"}},
    "points": sequence(tensor("float32", 3)),
    "pair": sequence(tensor("int32"), 2),
}
BESIDE = {"id": tensor("uint64"), "label": {"classLabel": {"numClasses": "4"}}, "name": {"text": {}}}


RECORD = {
    "state": np.arange(2 * STEPS, dtype=np.float32),
    "first": np.array([1, 0, 0]),
    "grid": [zlib.compress(grid) for grid in GRIDS],
    "text": ["größer".encode()] * STEPS,
    "image": [b"file"] * STEPS,
    "points/ragged_flat_values": np.arange(9, dtype=np.float32),
    "points/ragged_row_lengths_0": np.array([2, 0, 1]),
    "pair": np.arange(2 * STEPS),
    "id": np.array([-1]),
    "label": np.array([3]),
    "name": [b"one"],
}


def every_kind(folder: Path, changes: dict[str, Any] | None = None, **split: Any) -> Path:
    """A dataset of one episode with every kind of feature, some of whose values are others, or None: left out."""
    values = {name: each for name, each in {**RECORD, **(changes or {})}.items() if each is not None}
    return write_tfds(folder, [values], VALUES, name="demo", beside=BESIDE, **split)


def test_each_kind_of_feature_has_its_values(tmp_path):
    (found,) = TfdsDataset(every_kind(tmp_path)).episodes("train")
    assert found["steps/state"].dtype == np.float64
    assert found["steps/state"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert found["steps/first"].tolist() == [True, False, False]
    assert np.array_equal(np.stack(list(found["steps/grid"])), GRIDS)
    assert found["steps/text"] == ["größer"] * STEPS
    assert found["steps/image"] == [b"file"] * STEPS
    assert [points.tolist() for points in found["steps/points"]] == [[[0, 1, 2], [3, 4, 5]], [], [[6, 7, 8]]]
    assert found["steps/pair"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert (found["id"].tolist(), found["label"].tolist(), found["name"]) == (2**64 - 1, 3, "one")


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("state", np.arange(5, dtype=np.float32), "record 0: steps/state: cannot reshape"),
        ("state", [b"x"], "record 0: steps/state: 1 strings, not numbers"),
        ("text", np.arange(3), "record 0: steps/text: 3 numbers, not bytes"),
        ("points/ragged_row_lengths_0", np.array([4, -1, 0]), "steps/points: the lengths of its rows"),
        ("label", None, "record 0: label: not in the record"),
    ],
)
def test_values_that_do_not_match_their_feature_are_named(name, values, problem, tmp_path):
    with pytest.raises(RoboCacheError, match=problem):
        list(TfdsDataset(every_kind(tmp_path, {name: values})).episodes("train"))


def test_an_array_never_takes_more_memory_than_its_shape_says(tmp_path):
    bomb = [zlib.compress(bytes(1 << 24))] * STEPS
    (found,) = TfdsDataset(every_kind(tmp_path, {"grid": bomb})).episodes("train")
    with pytest.raises(ValueError, match="steps/grid: step 1: 9 bytes, not 8"):
        found["steps/grid"][1]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"filepathTemplate": "{SECRET}"}, "dataset_info.json is malformed"),
        ({"shardLengths": ["x"]}, "dataset_info.json is malformed"),
        ({"shardLengths": ["1"] * 100_001}, "more than 100,000 files"),
        ({"shardLengths": ["1", "1"]}, "00000-of-00002: not there, but a file of split train"),
        ({"shardLengths": ["2"]}, "1 records, not 2; get the file again"),
    ],
)
def test_a_dataset_info_that_is_malformed_or_of_other_files_is_refused(tmp_path, changes, problem):
    with pytest.raises(RoboCacheError, match=problem):
        list(TfdsDataset(every_kind(tmp_path, **changes)).episodes("train"))


@pytest.mark.parametrize(
    ("features", "problem"),
    [
        ("[]", "features.json: not a JSON object"),
        ("{", "features.json: not JSON"),
        ('{"featuresDict": {"features": {"a": {"audio": {}}}}}', "a: features of type . are not read"),
        ('{"featuresDict": {"features": {"a": {"tensor": {"shape": {}, "dtype": "complex"}}}}}', "a: malformed"),
        ('{"featuresDict": 3}', "features.json: malformed"),
        ('{"sequence": {"feature": ' * 40 + "{}" + "}}" * 40, "not a feature of TFDS"),
    ],
)
def test_a_malformed_features_file_is_refused(tmp_path, features, problem):
    every_kind(tmp_path)
    (tmp_path / "features.json").write_text(features)
    with pytest.raises(RoboCacheError, match=problem):
        TfdsDataset(tmp_path)


def test_a_folder_without_a_dataset_is_refused(tmp_path):
    with pytest.raises(RoboCacheError, match="cannot be read; give the folder of a TFDS dataset"):
        TfdsDataset(tmp_path)
