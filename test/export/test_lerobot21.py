"""LeRobot v2.1 with GR00T's files, read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as parquet
import pytest

from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.formats.lerobot import write
from robocache_ros.formats.validate import validate
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export

CAMERAS = ("front", "wrist")
VIDEO = "videos/chunk-000/observation.images.{}/episode_{:06d}.mp4"
GR00T_STATS = ["mean", "std", "min", "max", "q01", "q99"]


@pytest.fixture(scope="module")
def both(bags: list[Path], spec: FusionSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LeRobot v3.0 and v2.1 from one pass."""
    options = DatasetOptions(formats=("lerobot", "lerobot21"), task="lift the cube", robot_type="panda")
    return export(bags, spec, tmp_path_factory.mktemp("both") / "out", options).out


@pytest.fixture(scope="module")
def v21(both: Path) -> Path:
    return both / "lerobot21"


def lines(dataset: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (dataset / "meta" / name).read_text().splitlines()]


def info(dataset: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((dataset / "meta" / "info.json").read_text())
    return found


def joined(dataset: Path) -> dict[str, list[Any]]:
    """The rows of all files."""
    tables = [parquet.read_table(file, partitioning=None) for file in sorted(dataset.glob("data/*/*.parquet"))]
    return {name: [value for table in tables for value in table[name].to_pylist()] for name in tables[0].column_names}


def test_the_rows_are_those_of_v3(both: Path, v21: Path) -> None:
    new, old = joined(both / "lerobot"), joined(v21)
    assert old.pop("annotation.human.action.task_description") == old["task_index"]
    assert old == new


def test_each_episode_is_in_files_of_its_own(v21: Path) -> None:
    episodes = lines(v21, "episodes.jsonl")
    assert len(episodes) == info(v21)["total_episodes"] > 1
    for index, episode in enumerate(episodes):
        assert episode == {"episode_index": index, "tasks": ["lift the cube"], "length": episode["length"]}
        file = v21 / f"data/chunk-000/episode_{index:06d}.parquet"
        assert parquet.read_metadata(file).num_rows == episode["length"]
        for camera in CAMERAS:
            with av.open(str(v21 / VIDEO.format(camera, index))) as video:
                frames = list(video.decode(video=0))
                assert video.streams.video[0].codec_context.name == "h264"
            assert [frame.pts * frame.time_base * 50 for frame in frames] == list(range(episode["length"]))
            assert frames[0].key_frame
    assert lines(v21, "tasks.jsonl") == [{"task_index": 0, "task": "lift the cube"}]


def test_each_task_has_an_index(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    recordings = [PlannedRecording(bags[1], task=task) for task in ("lift the cube", "put it down", "lift the cube")]
    options = DatasetOptions(formats=("lerobot", "lerobot21"), media="none")
    out = export(recordings, spec, tmp_path / "out", options).out / "lerobot21"
    assert [line["task"] for line in lines(out, "tasks.jsonl")] == ["lift the cube", "put it down"]
    episodes = lines(out, "episodes.jsonl")
    assert {episode["tasks"][0] for episode in episodes} == {"lift the cube", "put it down"}
    table = joined(out)
    for key in ("task_index", "annotation.human.action.task_description"):
        for row, index in zip(table["episode_index"], table[key], strict=True):
            assert episodes[row]["tasks"] == [["lift the cube", "put it down"][index]]
    assert all(findings.found == [] for findings in validate(tmp_path / "out"))


def test_modality_names_the_columns_of_each_stream(v21: Path, spec: FusionSpec) -> None:
    modality = json.loads((v21 / "meta/modality.json").read_text())
    labels = info(v21)["features"]["observation.state"]["names"]
    for name, span in modality["state"].items():
        assert labels[span["start"] : span["end"]] == [f"{name}.{c}" for c in spec.stream(name).components]
    assert modality["action"] == {"action": {"start": 0, "end": 7}}
    assert modality["video"]["wrist"] == {"original_key": "observation.images.wrist"}
    assert modality["annotation"] == {
        "human.action.task_description": {},
        "human.task_description": {"original_key": "task_index"},
    }


def test_deltas_are_not_absolute_actions(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    options = DatasetOptions(formats=("lerobot21",), media="none", action="delta")
    out = export(bags[1:], spec, tmp_path / "out", options).out
    modality = json.loads((out / "meta/modality.json").read_text())
    assert modality["action"] == {"delta_action": {"start": 0, "end": 7, "absolute": False}}


def test_a_single_column_is_a_list(bags: list[Path], tmp_path: Path) -> None:
    joint = {"topic": "/panda/joint_states", "type": "sensor_msgs/msg/JointState", "names": ["panda_joint1"]}
    spec = load_spec({"robocache": 1, "streams": {"joint": joint, "action": {**joint, "role": "action"}}})
    result = export(bags[1:], spec, tmp_path / "out", DatasetOptions(formats=("lerobot21",)))
    assert np.array(joined(result.out)["observation.state"]).shape == (result.frames, 1)


def test_images_are_typed_for_readers_without_info(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    options = replace(DatasetOptions(formats=("lerobot21",)), media="image")
    result = export(bags[1:], spec, tmp_path / "out", options)
    metadata = parquet.read_schema(next(result.out.glob("data/*/*.parquet"))).metadata
    typed = json.loads(metadata[b"huggingface"])["info"]["features"]
    assert typed == {f"observation.images.{camera}": {"_type": "Image"} for camera in CAMERAS}
    assert json.loads((result.out / "meta/modality.json").read_text())["video"] == {}
    assert info(result.out)["total_videos"] == 0


def test_a_thousand_episodes_fill_a_folder(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write.schema, "CHUNK_EPISODES", 1)
    result = export(bags, spec, tmp_path / "out", DatasetOptions(formats=("lerobot21",), media="none"))
    episodes = sum(len(recording.episodes) for recording in result.recordings)
    assert len(list(result.out.glob("data/chunk-*"))) == info(result.out)["total_chunks"] == episodes
