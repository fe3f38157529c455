"""The rows of episodes, and the files of the tables."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.formats.delta import log
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.delta.conftest import Exports
from test.export.delta.delta_rows import deltalake, stacked, table


@pytest.fixture(scope="module")
def lift(exports: Exports) -> Path:
    return exports("lift", "none") / "delta"


def test_an_episode_states_its_recording_task_robot_and_times(lift: Path, bags: list[Path]) -> None:
    episodes, ticks = table(lift, "episodes").to_pylist(), table(lift, "ticks")

    assert [row["episode"] for row in episodes] == [0, 1, 2, 3]
    assert [row["recording"] for row in episodes] == [str(bags[0])] * 2 + [str(bags[1])] * 2
    assert [row["recording_episode"] for row in episodes] == [0, 1, 0, 1]
    assert {(row["task"], row["robot"], row["success"], row["rate_hz"]) for row in episodes} == {
        ("lift the cube", "panda", None, 50)
    }
    for row in episodes:
        of = np.array(ticks["tick_ns"])[np.array(ticks["episode"]) == row["episode"]]
        assert (row["start_ns"], row["stop_ns"], row["length"]) == (of[0], of[-1], len(of))
        assert row["start"].timestamp() == pytest.approx(of[0] / 1e9, abs=1e-5)


def test_success_is_that_of_each_recording(exports: Exports) -> None:
    episodes = table(exports("sensors", "image") / "delta", "episodes").to_pylist()

    assert {(row["recording"][-1], row["success"]) for row in episodes} == {("0", True), ("1", False)}


def test_quality_is_counted_from_the_ticks(exports: Exports) -> None:
    dataset = exports("sensors", "image") / "delta"
    ticks = table(dataset, "ticks")
    valid = ticks["valid"].combine_chunks()
    names, inputs = [field.name for field in valid.type], slice(0, 6)  # without reward and success

    for row in table(dataset, "episodes").to_pylist():
        of = stacked(valid)[np.array(ticks["episode"]) == row["episode"]]
        assert row["invalid"] == dict(zip(names, (of == 0).mean(axis=0), strict=True))
        assert row["aligned"] == dict(zip(names, (of == 1).mean(axis=0), strict=True))
        assert row["quality"]["complete"] == (of[:, inputs] > 0).all(axis=1).mean() < 1
        assert row["quality"]["held"] == (of[:, inputs] == 2).mean(axis=0).mean()


def test_delays_and_counters_are_those_of_the_recording(lift: Path, bags: list[Path]) -> None:
    row = table(lift, "episodes").to_pylist()[0]
    provenance = json.loads(next(lift.glob("appends/*/robocache.json")).read_text())
    with Bag(bags[0]) as bag:
        times = [(log_ns, data) for _, log_ns, data in bag.messages(["/panda/command"], None, None)]

    assert row["delay_ms"]["action"] is None  # a Float64MultiArray has no stamp
    assert 0 < row["delay_ms"]["joint_position"]["median"] <= row["delay_ms"]["joint_position"]["max"] < 100
    counted = {(c["stream"], c["counter"]): c["count"] for c in row["counters"]}
    assert counted["action", "received"] == len(times)
    reported = provenance["recordings"][0]["counters"]
    assert counted == {(stream, name): count for stream, of in reported.items() for name, count in of.items()}


def test_equal_exports_have_equal_bytes_also_of_the_logs(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, lift: Path
) -> None:
    options = DatasetOptions(formats=("delta",), task="lift the cube", robot_type="panda", media="none")
    export(bags, spec, tmp_path / "out", options, report=False)

    def contents(folder: Path) -> dict[str, Any]:
        files = (file for file in folder.rglob("*") if file.is_file() and file.parent.name != "meta")
        named = {str(file.relative_to(folder)): file.read_bytes() for file in files}
        return {name: data for name, data in named.items() if not name.startswith((".robocache", "SHA256"))}

    found, wanted = contents(tmp_path / "out"), contents(lift)
    provenance = {name for name in found if name.endswith("robocache.json")}  # states the formats of the export
    assert found.keys() == wanted.keys()
    assert [name for name in found if found[name] != wanted[name]] == list(provenance)


def test_a_file_is_named_by_its_contents(lift: Path) -> None:
    files = [file for name in ("ticks", "episodes") for file in lift.glob(f"{name}/*/*.parquet")]

    assert files
    assert all(file.name == f"part-{hashlib.sha256(file.read_bytes()).hexdigest()[:32]}.parquet" for file in files)


def test_a_range_of_episodes_is_a_partition(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "RANGE_EPISODES", 3)
    monkeypatch.setattr(log, "FILE_MB", 0)  # a file for each episode
    export(bags, spec, tmp_path / "out", DatasetOptions(formats=("delta",), media="none"), report=False)
    found = deltalake.DeltaTable(tmp_path / "out" / "ticks")

    assert sorted(partition["episode_range"] for partition in found.partitions()) == ["0", "3"]
    files = found.to_pyarrow_table(filters=[("episode_range", "=", 3)])
    assert set(files["episode"].to_pylist()) == {3}
    assert len(found.file_uris()) == 4


def test_a_stream_with_the_name_of_a_column_is_refused(bags: list[Path], tmp_path: Path) -> None:
    joints = {"topic": "/panda/joint_states", "type": "sensor_msgs/msg/JointState", "names": ["panda_joint1"]}
    spec = load_spec({"robocache": 1, "actions": "none", "streams": {"tick": joints}})

    with pytest.raises(RoboCacheError, match=r"streams.tick: delta has another column of this name; rename"):
        export(bags, spec, tmp_path / "out", DatasetOptions(formats=("delta",)))


def test_names_of_values_become_names_without_quotes(bags: list[Path], tmp_path: Path) -> None:
    pose = {"topic": "/panda/ee_pose", "type": "geometry_msgs/msg/PoseStamped", "on_invalid": "mask"}
    paths = ["pose.position.x", "pose.orientation.x"]
    streams = {"pose": {**pose, "field": paths}, "height": {**pose, "field": "pose.position.z"}}
    spec = load_spec({"robocache": 1, "actions": "none", "streams": streams})
    export(bags, spec, tmp_path / "out", DatasetOptions(formats=("delta",)))

    ticks = table(tmp_path / "out", "ticks")

    assert [field.name for field in ticks.schema.field("pose").type] == ["pose_position_x", "pose_orientation_x"]
