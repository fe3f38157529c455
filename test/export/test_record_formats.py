"""RLDS, WebDataset and recordings of the fused stream without their readers."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import CHECKED, Bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats import webdataset
from robocache_ros.formats.mcap import field_names
from robocache_ros.formats.rlds import write as rlds
from robocache_ros.formats.rlds.tfrecord import parse_example, read_records
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import Make
from test.exporting import export

RLDS = DatasetOptions(formats=("rlds",), task="lift", media="none")


def stored(folder: Path) -> list[dict[str, Any]]:
    """The examples of a dataset."""
    shards = sorted((folder / "robocache" / "1.0.0").glob("*.tfrecord-*"))
    return [parse_example(record) for shard in shards for record in read_records(shard)]


def test_a_masked_image_is_black_and_marked_invalid(exported: Make) -> None:
    made = exported("sensors", "image")
    column = [stream.name for stream in made.spec.streams].index("depth")
    for example in stored(made.out / "rlds"):
        valid = example["steps/robocache/valid"].reshape(-1, len(made.spec.streams))[:, column]
        sizes = [len(data) for data in example["steps/observation/depth"]]
        assert 0 < (valid == 0).sum() < len(valid)
        assert max(np.array(sizes)[valid == 0]) < min(np.array(sizes)[valid > 0])  # zeros compress well


def test_an_episode_that_no_reader_could_read_is_refused(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rlds, "RECORD_BYTES", 1000)
    with pytest.raises(RoboCacheError, match=r"lift: an episode of \d+ ticks takes .* use smaller images or shorter"):
        export(bags, spec, tmp_path / "out", RLDS, report=False)
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
        rlds.RLDS.check(load_spec({"robocache": 1, "streams": streams}), DatasetOptions())


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


WEBDATASET = DatasetOptions(formats=("webdataset",), task="lift", media="none")


def members(shard: Path) -> dict[str, bytes]:
    with tarfile.open(shard) as tar:
        found = {member.name: tar.extractfile(member) for member in tar}
        return {name: file.read() for name, file in found.items() if file}


def test_a_tick_is_a_sample_with_the_same_fields(exported: Make) -> None:
    made = exported("sensors", "image")
    names = list(members(made.out / "webdataset" / "train-000000.tar"))
    keys = [name.partition(".")[0] for name in names]
    assert list(dict.fromkeys(keys)) == [
        f"{episode:06d}_{tick:06d}" for episode, length in enumerate(made.lengths) for tick in range(length)
    ]
    vectors = ["state.npy", "action.npy", "force.npy", "force.age_ms.npy"]
    fields = [*vectors, "color.png", "gray.png", "depth.npz", "meta.json"]
    assert [name.partition(".")[2] for name in names] == fields * sum(made.lengths)


def test_members_have_no_owner_and_no_time(exported: Make) -> None:
    with tarfile.open(exported("robot", "none").out / "webdataset" / "train-000000.tar") as tar:
        reported = {(member.mtime, member.uid, member.gid, member.uname, member.gname, member.mode) for member in tar}
    assert reported == {(0, 0, 0, "", "", 0o644)}


def test_statistics_are_by_field(exported: Make) -> None:
    stats = json.loads((exported("sensors", "image").out / "webdataset" / "stats.json").read_text())
    assert set(stats) == {"state.npy", "action.npy", "force.npy", "color.png", "gray.png"}


def test_a_window_with_the_name_of_a_field_is_refused() -> None:
    stream = {"topic": "/a", "type": "std_msgs/msg/Float64MultiArray", "dim": 2, "align": "window", "samples": 3}
    spec = load_spec({"robocache": 1, "streams": {"state": stream}})
    with pytest.raises(RoboCacheError, match=r"streams.state: webdataset stores vectors under this name"):
        webdataset.WEBDATASET.check(spec, DatasetOptions())


def test_an_episode_is_a_recording_that_is_read_like_others(exported: Make) -> None:
    made = exported("robot", "video")
    for index, length in enumerate(made.lengths):
        with Bag(made.out / "mcap" / f"episode_{index:06d}") as bag:
            assert not bag.notes
            assert bag.integrity == CHECKED
            assert bag.topics["/robocache/joint_position"].count == length
            assert bag.topics["/robocache/episode/task"].count == 1
            assert bag.topics["/robocache/front"].type == "sensor_msgs/msg/CompressedImage"
            assert 0 < bag.topics["/robocache/front"].count < length  # a new image is not at every tick


def test_an_exported_recording_can_be_exported_again(exported: Make, tmp_path: Path) -> None:
    made = exported("robot", "none")
    names = [f"panda_joint{k}" for k in range(1, 8)]
    stream = {"topic": "/robocache/joint_position", "type": "robocache/msg/JointPosition", "field": names, "dim": 7}
    spec = load_spec({"robocache": 1, "streams": {"joint_position": {**stream, "align": "hold", "stamp": "receive"}}})
    with Bag(made.out / "mcap" / "episode_000000") as bag:
        (frames,) = BagRun(bag, spec).frames()
    assert np.array_equal(frames.ticks_ns, made.episodes[0]["tick_ns"])
    assert np.array_equal(frames.fused.numpy(), made.episodes[0]["joint_position"])


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (("panda_joint1", "x"), ("panda_joint1", "x")),
        (("0", "1"), ("v0", "v1")),
        (("Arm/Shoulder-Pan", "position.x"), ("arm_shoulder_pan", "position_x")),
        (("a-b", "a_b", "é"), ("a_b", "a_b_1", "v")),
        (("valid", "stamp"), ("valid_0", "stamp_1")),
    ],
)
def test_each_value_has_a_field_name_of_ros(labels: tuple[str, ...], names: tuple[str, ...]) -> None:
    assert field_names(labels) == names
