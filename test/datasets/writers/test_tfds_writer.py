"""Datasets that tensorflow-datasets itself writes, read without TensorFlow and compared value by value."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from robocache_ros.datasets import RTXDataset
from robocache_ros.formats.rlds.read import TfdsDataset
from test.datasets.writers.writing import write
from test.export.readers.environments import needs

pytestmark = needs("tensorflow")
LENGTHS = (5, 1, 7, 3, 4)
NUMBERS = ("position", "gripper", "half", "matrix")
FEATURES = 12  # of a step, apart from images, texts and sequences
PROPRIO = [f"observation/joints/{name}" for name in NUMBERS]


class Written(NamedTuple):
    folder: Path
    shards: list[int]
    episodes: list[dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    home = tmp_path_factory.mktemp("tfds")
    reported = write("tensorflow", "tensorflow", home, home / "data", home, TF_CPP_MIN_LOG_LEVEL="3")
    episodes = [dict(np.load(home / f"episode-{index}.npz")) for index in range(len(LENGTHS))]
    return Written(Path(reported["folder"]), reported["shards"], episodes)


def opened(written: Written, split: str = "train") -> RTXDataset:
    return RTXDataset(written.folder, split=split, rate_hz=10, target_hz=10, features={"proprio": PROPRIO})


@pytest.mark.parametrize("split", ["train", "val"])  # plain files, and files in gzip
def test_every_number_is_the_written_one(written: Written, split: str) -> None:
    dataset = opened(written, split)

    assert len(dataset) == len(LENGTHS)
    for index, given in enumerate(written.episodes):
        sample, length = dataset[index], LENGTHS[index]
        tables = [given[f"given|observation.joints.{name}"].reshape(length, -1) for name in NUMBERS]
        wanted = np.concatenate(tables, axis=1).astype(np.float32)
        assert np.array_equal(sample["proprio"], wanted)
        assert np.array_equal(sample["actions"], given["given|action"])
        assert np.array_equal(sample["rewards"], given["given|reward"])
        assert sample["language"] == "Öffne die Tür, 開けて"


def test_every_feature_is_the_one_that_tfds_reads(written: Written) -> None:
    records = TfdsDataset(written.folder).episodes("train")

    for index, (record, given) in enumerate(zip(records, written.episodes, strict=True)):
        compared = 0
        for name, values in given.items():
            kind, _, key = name.partition("|")
            found = record.get("steps/" + key.replace(".", "/"))
            if kind == "contacts":
                assert np.array_equal(record["steps/observation/contacts"][int(key)], values)
            elif kind in ("read", "given") and not isinstance(found, list):
                stored = values.astype(np.float32) if values.dtype == np.float64 else values
                assert np.array_equal(np.stack(list(found)), stored), name
                compared += 1
        assert compared == 2 * FEATURES
        assert record["episode_metadata/file_path"] == f"episode_{index}"
        assert bool(record["episode_metadata/success"]) == (index % 2 == 0)


def test_every_pixel_is_the_one_that_tfds_reads(written: Written) -> None:
    dataset = opened(written)

    for index, given in enumerate(written.episodes):
        sample = dataset[index]
        assert np.array_equal(sample["vision/wrist/png"], given["given|observation.wrist.png"])
        assert np.array_equal(sample["vision/wrist/png"], given["read|observation.wrist.png"])
        assert np.array_equal(sample["vision/jpeg"], given["read|observation.jpeg"])


def test_episodes_are_in_several_files(written: Written) -> None:
    assert written.shards == [2, 1, 2]
    assert [len(list(written.folder.glob(f"*-{split}.tfrecord*"))) for split in ("train", "val")] == [3, 3]
    assert "tensorflow" not in sys.modules
