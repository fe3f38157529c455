from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.formats.rlds import write
from robocache_ros.formats.rlds.tfrecord import parse_example, read_records
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.records.conftest import Make, picture

OPTIONS = DatasetOptions(formats=("rlds",), task="lift", media="none")


def stored(folder: Path) -> list[dict[str, Any]]:
    """The examples of a dataset."""
    shards = sorted((folder / "robocache" / "1.0.0").glob("*.tfrecord-*"))
    return [parse_example(record) for shard in shards for record in read_records(shard)]


def test_an_episode_is_a_record(exported: Make) -> None:
    made = exported("robot", "none")
    examples = stored(made.out / "rlds")
    assert [len(example["steps/reward"]) for example in examples] == made.lengths
    indices = [example["episode_metadata/episode_index"].tolist() for example in examples]
    assert indices == [[index] for index in range(len(made.lengths))]


def test_vectors_are_the_fused_columns_to_the_bit(exported: Make) -> None:
    made = exported("robot", "none")
    for index, example in enumerate(stored(made.out / "rlds")):
        expected = made.episodes[index]
        assert example["steps/observation/state"].tobytes() == made.vectors(expected, "observation").tobytes()
        assert example["steps/action"].tobytes() == made.vectors(expected, "action").tobytes()


def test_a_masked_image_is_black_and_marked_invalid(exported: Make) -> None:
    made = exported("sensors", "image")
    column = [stream.name for stream in made.spec.streams].index("depth")
    for example in stored(made.out / "rlds"):
        valid = example["steps/robocache/valid"].reshape(-1, len(made.spec.streams))[:, column]
        sizes = [len(data) for data in example["steps/observation/depth"]]
        assert 0 < (valid == 0).sum() < len(valid)
        assert max(np.array(sizes)[valid == 0]) < min(np.array(sizes)[valid > 0])  # zeros compress well


def test_a_gray_image_is_stored_as_rgb(exported: Make) -> None:
    example = stored(exported("sensors", "image").out / "rlds")[0]
    image = picture(bytes(example["steps/observation/gray"][0]))
    assert image.shape == (9, 17, 3)
    assert (image == image[:, :, :1]).all()


def test_a_full_file_is_followed_by_another(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "SHARD_BYTES", 1)
    export(bags, spec, tmp_path / "out", OPTIONS, report=False)
    folder = tmp_path / "out" / "robocache" / "1.0.0"
    count = len(stored(tmp_path / "out"))
    assert sorted(path.name for path in folder.glob("*tfrecord*")) == [
        f"robocache-train.tfrecord-{index:05d}-of-{count:05d}" for index in range(count)
    ]
    (split,) = json.loads((folder / "dataset_info.json").read_text())["splits"]
    assert split["shardLengths"] == ["1"] * count


def test_an_episode_that_no_reader_could_read_is_refused(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "RECORD_BYTES", 1000)
    with pytest.raises(RoboCacheError, match=r"lift: an episode of \d+ ticks takes .* use smaller images or shorter"):
        export(bags, spec, tmp_path / "out", OPTIONS, report=False)
    assert not (tmp_path / "out" / "robocache").exists()


@pytest.mark.parametrize(
    ("streams", "problem"),
    [
        ({"state": {"topic": "/a", "type": "sensor_msgs/msg/Image"}}, "streams.state: rlds stores all vectors"),
        (
            {"arm": {"topic": "/a", "type": "std_msgs/msg/Float64MultiArray", "dim": 2, "role": "action"}},
            "streams: rlds needs an observation",
        ),
    ],
)
def test_a_spec_that_rlds_cannot_store_is_refused(streams: dict[str, Any], problem: str) -> None:
    with pytest.raises(RoboCacheError, match=problem):
        write.RLDS.check(load_spec({"robocache": 1, "streams": streams}), DatasetOptions())


def test_statistics_are_in_the_form_of_octo_and_openvla(exported: Make) -> None:
    made = exported("robot", "none")
    reported = json.loads((made.out / "rlds" / "robocache" / "1.0.0" / "dataset_statistics.json").read_text())
    actions = np.concatenate([example["steps/action"].reshape(-1, 7) for example in stored(made.out / "rlds")])
    assert (reported["num_trajectories"], reported["num_transitions"]) == (len(made.lengths), sum(made.lengths))
    kinds = {"mean", "std", "min", "max", "q01", "q99", "p01", "p99"}
    assert reported["action"].keys() == reported["proprio"].keys() == kinds
    assert reported["action"]["mean"] == pytest.approx(actions.mean(axis=0, dtype=float).tolist())


@pytest.mark.parametrize(
    ("name", "file"),
    [("rlds", "robocache/1.0.0/robocache.json"), ("webdataset", "robocache.json"), ("mcap", "robocache.json")],
)
def test_the_provenance_says_that_jpeg_is_lossy(exported: Make, name: str, file: str) -> None:
    made = exported("robot", "video")
    reported = json.loads((made.out / name / file).read_text())
    assert load_spec(reported["spec"]) == made.spec
    assert reported["images"]["front"]["stored"] == "8-bit RGB as JPEG, lossy"
