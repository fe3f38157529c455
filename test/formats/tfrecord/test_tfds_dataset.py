from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.rlds.read import TfdsDataset
from robocache_ros.formats.rlds.tfrecord import BytesList, Feature, RecordWriter, encode_example

STEPS = 3
GRIDS = np.arange(STEPS * 4, dtype="<u2").reshape(STEPS, 2, 2)


def tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
    return {"tensor": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype, "encoding": encoding}}


def sequence(feature: dict[str, Any], length: int = -1) -> dict[str, Any]:
    return {"sequence": {"feature": feature, "length": str(length)}}


def group(**features: Any) -> dict[str, Any]:
    return {"featuresDict": {"features": features}}


FEATURES = group(
    steps=sequence(
        group(
            state=tensor("float64", 2),
            first=tensor("bool"),
            grid=tensor("uint16", 2, 2, encoding="zlib"),
            text={"text": {}},
            image={"image": {"encodingFormat": "png"}},
            points=sequence(tensor("float32", 3)),
            pair=sequence(tensor("int32"), 2),
        )
    ),
    id=tensor("uint64"),
    label={"classLabel": {"numClasses": "4"}},
    name={"text": {}},
)


def record() -> dict[str, Feature]:
    return {
        "steps/state": np.arange(2 * STEPS, dtype=np.float32),
        "steps/first": np.array([1, 0, 0]),
        "steps/grid": BytesList([zlib.compress(grid) for grid in GRIDS]),
        "steps/text": BytesList(["größer".encode()] * STEPS),
        "steps/image": BytesList([b"file"] * STEPS),
        "steps/points/ragged_flat_values": np.arange(9, dtype=np.float32),
        "steps/points/ragged_row_lengths_0": np.array([2, 0, 1]),
        "steps/pair": np.arange(2 * STEPS),
        "id": np.array([-1]),
        "label": np.array([3]),
        "name": BytesList([b"one"]),
    }


def written(folder: Path, *shards: list[dict[str, Feature]], **changes: Any) -> Path:
    """A dataset with the records of each file; changes are those of its split."""
    for index, records in enumerate(shards):
        writer = RecordWriter(folder / f"demo-train.tfrecord-{index:05d}-of-{len(shards):05d}")
        for features in records:
            writer.write(*encode_example(features))
        writer.close()
    split = {"name": "train", "shardLengths": [str(len(records)) for records in shards], **changes}
    (folder / "dataset_info.json").write_text(json.dumps({"name": "demo", "version": "1.0.0", "splits": [split]}))
    (folder / "features.json").write_text(json.dumps(FEATURES))
    return folder


def test_each_kind_of_feature_has_its_values(tmp_path: Path) -> None:
    (found,) = TfdsDataset(written(tmp_path, [record()])).episodes("train")
    assert found["steps/state"].dtype == np.float64
    assert found["steps/state"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert found["steps/first"].tolist() == [True, False, False]
    assert np.array_equal(np.stack(list(found["steps/grid"])), GRIDS)
    assert found["steps/text"] == ["größer"] * STEPS
    assert found["steps/image"] == [b"file"] * STEPS
    assert [points.tolist() for points in found["steps/points"]] == [[[0, 1, 2], [3, 4, 5]], [], [[6, 7, 8]]]
    assert found["steps/pair"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert (found["id"].tolist(), found["label"].tolist(), found["name"]) == (2**64 - 1, 3, "one")


def test_records_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    records = [{**record(), "label": np.array([k])} for k in range(4)]
    written(tmp_path, records[:1], records[1:], filepathTemplate="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}")
    assert [int(found["label"]) for found in TfdsDataset(tmp_path).episodes("train")] == [0, 1, 2, 3]


def test_files_in_gzip_are_read(tmp_path: Path) -> None:
    (file,) = TfdsDataset(written(tmp_path, [record()])).splits["train"].files
    file.write_bytes(gzip.compress(file.read_bytes()))
    assert len(list(TfdsDataset(tmp_path).episodes("train"))) == 1


def test_the_message_about_a_damaged_record_names_the_file_and_the_record(tmp_path: Path) -> None:
    (file,) = TfdsDataset(written(tmp_path, [record(), record()])).splits["train"].files
    file.write_bytes(file.read_bytes()[:-6] + b"xxxxxx")
    with pytest.raises(RoboCacheError, match=r"demo-train.tfrecord-00000-of-00001: record 1: its checksum is wrong"):
        list(TfdsDataset(tmp_path).episodes("train"))


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("steps/state", np.arange(5, dtype=np.float32), "record 0: steps/state: cannot reshape"),
        ("steps/state", BytesList([b"x"]), "record 0: steps/state: 1 strings, not numbers"),
        ("steps/text", np.arange(3), "record 0: steps/text: 3 numbers, not bytes"),
        ("steps/points/ragged_row_lengths_0", np.array([4, -1, 0]), "steps/points: the lengths of its rows"),
    ],
)
def test_values_that_do_not_match_their_feature_are_named(
    tmp_path: Path, name: str, values: Feature, problem: str
) -> None:
    written(tmp_path, [{**record(), name: values}])
    with pytest.raises(RoboCacheError, match=problem):
        list(TfdsDataset(tmp_path).episodes("train"))


def test_a_feature_that_a_record_lacks_is_named(tmp_path: Path) -> None:
    written(tmp_path, [{name: values for name, values in record().items() if name != "label"}])
    with pytest.raises(RoboCacheError, match="record 0: label: not in the record"):
        list(TfdsDataset(tmp_path).episodes("train"))


def test_an_array_never_takes_more_memory_than_its_shape_says(tmp_path: Path) -> None:
    bomb = BytesList([zlib.compress(bytes(1 << 24))] * STEPS)
    (found,) = TfdsDataset(written(tmp_path, [{**record(), "steps/grid": bomb}])).episodes("train")
    with pytest.raises(ValueError, match="steps/grid: step 1: 9 bytes, not 8"):
        found["steps/grid"][1]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    written(tmp_path, [record()], shardLengths=["1", "1"])
    with pytest.raises(RoboCacheError, match="00000-of-00002: not there, but a file of split train"):
        list(TfdsDataset(tmp_path).episodes("train"))


def test_a_file_with_too_few_records_is_named(tmp_path: Path) -> None:
    written(tmp_path, [record()], shardLengths=["2"])
    with pytest.raises(RoboCacheError, match="1 records, not 2; get the file again"):
        list(TfdsDataset(tmp_path).episodes("train"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"filepathTemplate": "../{DATASET}"}, "a file is not in the folder"),
        ({"filepathTemplate": "{SECRET}"}, "dataset_info.json is malformed"),
        ({"shardLengths": ["x"]}, "dataset_info.json is malformed"),
        ({"shardLengths": ["1"] * 100_001}, "more than 100,000 files"),
    ],
)
def test_a_malformed_dataset_info_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(RoboCacheError, match=problem):
        TfdsDataset(written(tmp_path, [record()], **changes))


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
def test_a_malformed_features_file_is_refused(tmp_path: Path, features: str, problem: str) -> None:
    written(tmp_path, [record()])
    (tmp_path / "features.json").write_text(features)
    with pytest.raises(RoboCacheError, match=problem):
        TfdsDataset(tmp_path)


def test_a_folder_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RoboCacheError, match="cannot be read; give the folder of a TFDS dataset"):
        TfdsDataset(tmp_path)
