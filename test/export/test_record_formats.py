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
from robocache_ros.formats.mcap import field_names
from robocache_ros.formats.rlds import write as rlds
from robocache_ros.formats.rlds.tfrecord import parse_example, read_records
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export


def stored(folder: Path) -> list[dict[str, Any]]:
    """The examples of a dataset."""
    shards = sorted((folder / "robocache" / "1.0.0").glob("*.tfrecord-*"))
    return [parse_example(record) for shard in shards for record in read_records(shard)]


def test_an_episode_that_no_reader_could_read_is_refused(bags, spec, tmp_path, monkeypatch):
    monkeypatch.setattr(rlds, "RECORD_BYTES", 1000)
    with pytest.raises(RoboCacheError, match=r"lift: an episode of \d+ ticks takes .* use smaller images or shorter"):
        export(bags, spec, tmp_path / "out", DatasetOptions(formats=("rlds",), media="none"), report=False)
    assert not (tmp_path / "out" / "robocache").exists()


ARRAY = {"topic": "/a", "type": "std_msgs/msg/Float64MultiArray", "dim": 2}
IMAGE = {"topic": "/a", "type": "sensor_msgs/msg/Image"}


@pytest.mark.parametrize(
    ("name", "stream", "format_", "problem"),
    [
        ("state", IMAGE, "rlds", "streams.state: rlds stores all vectors"),
        ("arm", ARRAY | {"role": "action"}, "rlds", "streams: rlds needs an observation"),
        ("state", ARRAY | {"align": "window", "samples": 3}, "webdataset", "streams.state: webdataset stores vectors"),
        ("action", ARRAY, "diffusion_policy", r"streams\.action: diffusion_policy stores the action under this name"),
        ("tick", ARRAY, "delta", r"streams\.tick: delta has another column of this name; rename"),
    ],
)
def test_a_spec_that_a_format_cannot_store_is_refused_before_reading(name, stream, format_, problem, tmp_path):
    actions = "required" if "role" in stream else "none"
    spec = load_spec({"robocache": 1, "actions": actions, "streams": {name: stream}})
    with pytest.raises(RoboCacheError, match=problem):
        export([tmp_path / "no_recording"], spec, tmp_path / "out", DatasetOptions(formats=(format_,)))


def test_statistics_are_in_the_form_of_octo_and_openvla(exported):
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
def test_the_provenance_says_that_jpeg_is_lossy(exported, name, file):
    made = exported("robot", "video")
    reported = json.loads((made.out / name / file).read_text())
    assert load_spec(reported["spec"]) == made.spec
    assert reported["images"]["front"]["stored"] == "8-bit RGB as JPEG, lossy"


def test_a_tick_is_a_sample_with_the_same_fields(exported):
    made = exported("sensors", "image")
    with tarfile.open(made.out / "webdataset" / "train-000000.tar") as tar:
        members = list(tar)
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members} == {(0, 0, 0, "", "", 0o644)}
    keys = [member.name.partition(".")[0] for member in members]
    ticks = [(episode, tick) for episode, length in enumerate(made.lengths) for tick in range(length)]
    assert list(dict.fromkeys(keys)) == [f"{episode:06d}_{tick:06d}" for episode, tick in ticks]
    of_statistics = ["state.npy", "action.npy", "force.npy", "color.png", "gray.png"]
    fields = [*of_statistics[:3], "force.age_ms.npy", *of_statistics[3:], "depth.npz", "meta.json"]
    assert [member.name.partition(".")[2] for member in members] == fields * sum(made.lengths)
    assert set(json.loads((made.out / "webdataset" / "stats.json").read_text())) == set(of_statistics)


def test_an_episode_is_a_recording_that_is_read_like_others(exported):
    made = exported("robot", "video")
    for index, length in enumerate(made.lengths):
        with Bag(made.out / "mcap" / f"episode_{index:06d}") as bag:
            assert not bag.notes
            assert bag.integrity == CHECKED
            assert bag.topics["/robocache/joint_position"].count == length
            assert bag.topics["/robocache/episode/task"].count == 1
            assert bag.topics["/robocache/front"].type == "sensor_msgs/msg/CompressedImage"
            assert 0 < bag.topics["/robocache/front"].count < length  # a new image is not at every tick


def test_an_exported_recording_can_be_exported_again(exported, tmp_path):
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
        ("panda_joint1 x", "panda_joint1 x"),
        ("0 1", "v0 v1"),
        ("Arm/Shoulder-Pan position.x", "arm_shoulder_pan position_x"),
        ("a-b a_b é", "a_b a_b_1 v"),
        ("valid stamp", "valid_0 stamp_1"),
    ],
)
def test_each_value_has_a_field_name_of_ros(labels, names):
    assert field_names(tuple(labels.split())) == tuple(names.split())
