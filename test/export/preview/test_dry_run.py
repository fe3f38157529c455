"""What is known of an export before it: what matches, what is expected, and what it costs. Nothing is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import preview as dry_run_module
from robocache_ros.exporter.job import export
from robocache_ros.exporter.planned_recording import PlannedRecording, moment, planned
from robocache_ros.exporter.preview import expect, match
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import dry_run

NO_MEDIA = DatasetOptions(media="none")


def test_what_is_expected_is_what_an_export_makes(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    part = PlannedRecording(bags[0], start=moment(0.2), stop=moment(1.2))
    result = export([part], spec.without_cameras(), tmp_path / "set", NO_MEDIA).recordings[0]
    found = expect(part, spec.without_cameras(), NO_MEDIA)
    assert found.problems == ()
    assert found.result
    assert found.result.episodes == result.episodes
    assert np.array_equal(found.result.valid, result.valid)


def test_images_are_expected_without_being_converted(bags: list[Path], spec: FusionSpec) -> None:
    found = expect(PlannedRecording(bags[0]), spec)
    assert found.result
    column = [stream.name for stream in spec.streams].index("front")
    assert found.result.valid[found.result.kept, column].all()
    assert not any(found.result.thumbnails.images.values())


def test_a_refusal_is_expected_with_its_reason(bags: list[Path], spec: FusionSpec) -> None:
    found = expect(PlannedRecording(bags[0]), spec.without_cameras(), DatasetOptions(media="none", min_frames=1000))
    assert "no 1000 ticks in a row have every stream" in found.refusal
    assert found.result


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"topic": "/panda/gripper/joint_state"}, "no topic /panda/gripper/joint_state; did you mean '/panda/gripper"),
        ({"type": "sensor_msgs/msg/Imu", "field": "orientation"}, "type: sensor_msgs/msg/JointState in the recording"),
        ({"names": ["panda_finger_joint1", "none"]}, "names: no joint none; /panda/gripper/joint_states has panda_fin"),
        ({"names": ["panda_finger_jont1"]}, "names: no joint panda_finger_jont1; did you mean 'panda_finger_joint1'?"),
    ],
)
def test_what_does_not_match_is_named(bags: list[Path], changes: dict[str, object], expected: str) -> None:
    stream = {
        "topic": "/panda/gripper/joint_states",
        "type": "sensor_msgs/msg/JointState",
        "names": ["panda_finger_joint1"],
        **changes,
    }
    if "field" in changes:
        del stream["names"]
    with Bag(bags[0]) as bag:
        (found,) = match(bag, load_spec({"robocache": 1, "streams": {"gripper": stream}}))
    assert expected in found.problems[0]


def test_frames_that_no_transform_has_are_named(tmp_path: Path, tf_message) -> None:
    message = tf_message((10**9, "base_link", "tool0", (0.0, 0.0, 0.0)))
    path = write_bag(tmp_path / "bag", {"/tf": "tf2_msgs/msg/TFMessage"}, [("/tf", 10**9, message)])
    stream = {"topic": "/tf", "type": "tf2_msgs/msg/TFMessage", "frames": ["base_link", "tool"]}
    with Bag(path) as bag:
        (found,) = match(bag, load_spec({"robocache": 1, "streams": {"tool": stream}}))
    assert found.problems == ("frames: no frame 'tool'; did you mean 'tool0'?",)


def test_the_estimate_of_a_short_recording_exports_a_second_of_it(spec: FusionSpec, tmp_path: Path) -> None:
    panda_lift = Path(__file__).parents[2] / "data" / "panda_lift"  # 7.6 s
    run = dry_run(planned([panda_lift]), spec.without_cameras(), tmp_path / "set", NO_MEDIA)
    assert run.estimate
    assert run.estimate.sample_frames == 50


def test_a_dry_run_counts_and_estimates_and_writes_nothing(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    recordings = planned([*bags, tmp_path / "missing.mcap"])
    run = dry_run(recordings, spec.without_cameras(), tmp_path / "out" / "set", NO_MEDIA, jobs=2)
    assert not (tmp_path / "out").exists()
    assert len(run.accepted) == 2
    assert "no such recording" in run.expected[2].problems[0]
    made = export(bags, spec.without_cameras(), tmp_path / "set", NO_MEDIA)
    size = sum(file.stat().st_size for file in made.out.rglob("*") if file.is_file())
    assert (run.frames, run.episodes) == (made.frames, made.episodes)
    assert run.estimate
    assert run.estimate.jobs == 2
    # The report has figures per recording, and the estimate is from one of the two.
    assert size / 2 < run.estimate.size_bytes < size * 2


def test_a_dry_run_knows_what_an_earlier_export_has_converted(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RoboCacheError("disk: full; free some space")

    spec = spec.without_cameras()
    with monkeypatch.context() as patched:
        patched.setattr("robocache_ros.exporter.datasets.merge_pieces", full)
        with pytest.raises(RoboCacheError, match="disk: full"):
            export(bags[:1], spec, tmp_path / "set", NO_MEDIA)
    monkeypatch.setattr(dry_run_module, "_estimate", lambda *_: None)
    run = dry_run(planned(bags), spec, tmp_path / "set", NO_MEDIA)
    assert run.converted == {PlannedRecording(bags[0])}
    changed = dry_run(planned(bags), spec, tmp_path / "set", replace(NO_MEDIA, min_frames=3))
    assert changed.converted == frozenset()


def test_a_dry_run_refuses_what_an_export_refuses(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RoboCacheError, match="exists; choose another folder"):
        dry_run(planned(bags), spec, tmp_path)
    with pytest.raises(RoboCacheError, match="is a file; give a new folder"):
        dry_run(planned(bags), spec, tmp_path / "file")
