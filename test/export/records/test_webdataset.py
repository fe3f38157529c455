from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.formats import webdataset as write
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.records.conftest import Make

OPTIONS = DatasetOptions(formats=("webdataset",), task="lift", media="none")


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


def test_vectors_are_the_fused_columns_to_the_bit(exported: Make) -> None:
    made = exported("robot", "none")
    stored = members(made.out / "webdataset" / "train-000000.tar")
    for index, length in enumerate(made.lengths):
        keys = [f"{index:06d}_{tick:06d}" for tick in range(length)]
        expected = made.episodes[index]
        state = np.stack([np.load(io.BytesIO(stored[f"{key}.state.npy"])) for key in keys])
        assert state.tobytes() == made.vectors(expected, "observation").tobytes()


def test_members_have_no_owner_and_no_time(exported: Make) -> None:
    with tarfile.open(exported("robot", "none").out / "webdataset" / "train-000000.tar") as tar:
        reported = {(member.mtime, member.uid, member.gid, member.uname, member.gname, member.mode) for member in tar}
    assert reported == {(0, 0, 0, "", "", 0o644)}


def test_a_full_shard_is_followed_by_another_at_the_next_episode(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "SHARD_BYTES", 1)
    export(bags, spec, tmp_path / "out", OPTIONS, report=False)
    reported = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert len(reported["shards"]) == len(reported["episodes"]) > 2
    for index, (shard, episode) in enumerate(zip(reported["shards"], reported["episodes"], strict=True)):
        file = tmp_path / "out" / shard["name"]
        assert {name.split("_")[0] for name in members(file)} == {f"{index:06d}"}
        assert (shard["episodes"], shard["samples"], shard["bytes"]) == (1, episode["samples"], file.stat().st_size)


def test_statistics_are_by_field(exported: Make) -> None:
    stats = json.loads((exported("sensors", "image").out / "webdataset" / "stats.json").read_text())
    assert set(stats) == {"state.npy", "action.npy", "force.npy", "color.png", "gray.png"}


def test_a_window_with_the_name_of_a_field_is_refused() -> None:
    stream = {"topic": "/a", "type": "std_msgs/msg/Float64MultiArray", "dim": 2, "align": "window", "samples": 3}
    spec = load_spec({"robocache": 1, "streams": {"state": stream}})
    with pytest.raises(RoboCacheError, match=r"streams.state: webdataset stores vectors under this name"):
        write.WEBDATASET.check(spec, DatasetOptions())
