"""Several datasets of one export: each has the bytes of an export of its own, and each recording is read once."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.datasets import ExportResult
from robocache_ros.exporter.job import export_together, outputs_of
from robocache_ros.exporter.options import ExportOptions
from robocache_ros.exporter.planned_recording import Moment, PlannedRecording
from robocache_ros.exporter.progress import Event, Failed
from robocache_ros.exporter.request import MAX_OUTPUTS, Output
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import ROOT, by_share, contents, named
from test.exporting import export

FORMATS = ("lerobot", "webdataset", "mcap")
NO_MEDIA = DatasetOptions(media="none")
Bags = Sequence[Path | PlannedRecording]


@pytest.fixture(scope="session")
def arm(spec: FusionSpec) -> FusionSpec:
    """Some of the streams, with another delay."""
    streams = tuple(stream for stream in spec.streams if stream.name in ("joint_position", "action"))
    return replace(spec, streams=streams, delay_ms=40.0)


@pytest.fixture
def separate(tmp_path: Path) -> Callable[[Bags, Output], dict[str, bytes]]:
    """The files of a dataset that is exported on its own."""

    def run(bags: Bags, output: Output, report: bool = False) -> dict[str, bytes]:
        out = tmp_path / "alone" / output.name
        return contents(export(bags, output.spec, out, output.options, report=report).out)

    return run


def test_each_dataset_of_two_specs_and_two_rates_has_the_bytes_of_a_separate_export(
    bags: list[Path], spec: FusionSpec, arm: FusionSpec, tmp_path: Path, separate: Callable[..., dict[str, bytes]]
) -> None:
    outputs = outputs_of(
        [("panda", spec), ("arm", arm)], [50, 10], DatasetOptions(formats=FORMATS, codec="h264", preset="ultrafast")
    )
    results = export_together(bags, outputs, tmp_path / "sets")
    assert [result.out.name for result in results] == ["panda-50hz", "panda-10hz", "arm-50hz", "arm-10hz"]
    for output, result in zip(outputs, results, strict=True):
        assert contents(result.out) == separate(bags, output, report=True), output.name


def test_any_number_of_processes_makes_the_bytes_of_separate_exports(
    bags: list[Path], spec: FusionSpec, arm: FusionSpec, tmp_path: Path, separate: Callable[..., dict[str, bytes]]
) -> None:
    outputs = outputs_of([("panda", spec), ("arm", arm)], [], NO_MEDIA)
    made = [export_together(bags, outputs, tmp_path / str(jobs), jobs=jobs, report=False) for jobs in (1, 2)]
    for output, one, two in zip(outputs, *made, strict=True):
        assert contents(one.out) == contents(two.out) == separate(bags, output)


def test_messages_are_read_once(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bool] = []
    messages = Bag.messages

    def counted(bag: Bag, *wanted: Any, views: bool = False) -> Any:
        read.append(views)  # views: of the pass over the messages, not of the timeline
        return messages(bag, *wanted, views=views)

    monkeypatch.setattr(Bag, "messages", counted)
    export_together(bags[:1], outputs_of([("panda", spec)], [50, 25, 10], NO_MEDIA), tmp_path / "sets", report=False)
    assert sum(read) == 1


def test_a_part_of_a_recording_has_the_bytes_of_a_separate_export(
    bags: list[Path], spec: FusionSpec, arm: FusionSpec, tmp_path: Path, separate: Callable[..., dict[str, bytes]]
) -> None:
    part = PlannedRecording(bags[0], start=Moment(300_000_000, relative=True), stop=Moment(900_000_000, relative=True))
    held = replace(arm, streams=tuple(replace(stream, on_invalid="hold") for stream in arm.streams))
    outputs = outputs_of([("panda", spec), ("held", held)], [], NO_MEDIA)
    for output, result in zip(outputs, export_together([part], outputs, tmp_path / "sets", report=False), strict=True):
        assert contents(result.out) == separate([part], output)


def test_a_separate_export_converts_nothing_again(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    pieces, seen = tmp_path / "pieces", list[str]()
    outputs = outputs_of([("panda", spec)], [50, 10], NO_MEDIA)
    export_together(bags, outputs, tmp_path / "sets", report=False, pieces=pieces)
    done = export(
        bags, spec, tmp_path / "panda-10hz", outputs[1].options, pieces=pieces, report=False, progress=named(seen)
    )
    assert seen == []
    assert contents(done.out) == contents(tmp_path / "sets" / "panda-10hz")


def test_another_rate_costs_one_conversion(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    pieces = tmp_path / "pieces"
    export(bags, spec, tmp_path / "one", replace(NO_MEDIA, rate_hz=10), pieces=pieces, report=False)
    outputs = outputs_of([("panda", spec)], [50, 10], NO_MEDIA)
    new, old = export_together(bags, outputs, tmp_path / "sets", report=False, pieces=pieces)
    assert new.notes == ()
    assert old.notes == ("2 of 2 recordings were converted by an earlier export and reused",)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_stopped_export_is_continued(
    bags: list[Path],
    spec: FusionSpec,
    arm: FusionSpec,
    tmp_path: Path,
    separate: Callable[..., dict[str, bytes]],
    share: float,
) -> None:
    def stop(name: str, done: float) -> None:
        if name == bags[1].name and done >= share:
            raise KeyboardInterrupt

    outputs = outputs_of([("panda", spec), ("arm", arm)], [10], NO_MEDIA)
    with pytest.raises(KeyboardInterrupt):
        export_together(bags, outputs, tmp_path / "sets", report=False, progress=by_share(stop))
    seen: list[str] = []
    results = export_together(bags, outputs, tmp_path / "sets", report=False, progress=named(seen))
    assert set(seen) == {bags[1].name}
    assert [contents(result.out) for result in results] == [separate(bags, output) for output in outputs]


def without(bag: Path, topic: str, folder: Path) -> Path:
    """A copy of a recording without a topic."""
    with Bag(bag) as opened:
        types = {name: found.type for name, found in opened.topics.items() if name != topic}
        return write_bag(folder, types, list(opened.messages(list(types))))


def test_a_recording_may_be_missing_in_one_dataset_only(
    bags: list[Path], spec: FusionSpec, arm: FusionSpec, tmp_path: Path, separate: Callable[..., dict[str, bytes]]
) -> None:
    some = [bags[0], without(bags[1], "/panda/ee_pose", tmp_path / "few")]
    outputs = outputs_of([("panda", spec), ("arm", arm)], [], NO_MEDIA)
    reported: list[Event] = []
    with pytest.raises(RoboCacheError, match=r"^panda-50hz: .*few: has no topic /panda/ee_pose"):
        export_together(some, outputs, tmp_path / "sets", report=False)
    panda, of_arm = export_together(
        some, outputs, tmp_path / "sets", report=False, on_error="skip", progress=reported.append
    )
    assert [loss.bag.name for loss in panda.failed] == ["few"]
    assert not of_arm.failed
    assert contents(of_arm.out) == separate(some, outputs[1])
    assert [event.dataset for event in reported if isinstance(event, Failed)] == ["panda-50hz"]


def test_an_episode_that_is_dropped_after_its_rows_were_written_is_dropped_in_one_dataset(
    bags: list[Path], arm: FusionSpec, tmp_path: Path, separate: Callable[..., dict[str, bytes]]
) -> None:
    with Bag(bags[0]) as opened:
        types = {name: topic.type for name, topic in opened.topics.items()} | {"/episode": "std_msgs/msg/Int32"}
        begins = [
            RawMessage("/episode", opened.start_ns + 250_000_000 * k, b"\0\1\0\0" + struct.pack("<i", k))
            for k in range(6)
        ]
        bag = write_bag(tmp_path / "lift", types, sorted([*opened.messages(), *begins], key=lambda m: m.log_ns))
    parted = replace(NO_MEDIA, episode_topic="/episode")
    outputs = [Output("split", arm, parted), Output("drop", arm, replace(parted, on_invalid="drop"))]
    split, drop = export_together([bag], outputs, tmp_path / "sets", report=False)
    assert "in dropped episodes" in drop.recordings[0].reasons
    assert [contents(split.out), contents(drop.out)] == [separate([bag], output) for output in outputs]


def test_a_damaged_recording_has_the_notes_of_a_separate_export(
    spec: FusionSpec, arm: FusionSpec, tmp_path: Path, separate: Callable[..., dict[str, bytes]]
) -> None:
    damaged = shutil.copytree(ROOT / "test" / "data" / "panda_lift", tmp_path / "damaged")
    (file,) = damaged.glob("*.mcap")
    data = bytearray(file.read_bytes())
    data[5_000_000:5_000_100] = bytes(100)
    file.write_bytes(data)
    outputs = outputs_of([("panda", spec), ("arm", arm)], [10], NO_MEDIA)
    results = export_together([damaged], outputs, tmp_path / "sets", report=False)
    assert any("chunks are damaged" in note for note in results[0].recordings[0].notes)
    assert [contents(result.out) for result in results] == [separate([damaged], output) for output in outputs]


def test_all_datasets_are_replaced_or_none(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    def run(rates_hz: list[int], **more: bool) -> tuple[ExportResult, ...]:
        return export_together(
            bags[:1], outputs_of([("p", spec)], rates_hz, NO_MEDIA), tmp_path / "sets", report=False, **more
        )

    run([10, 20])
    with pytest.raises(RoboCacheError, match="exists; choose another folder, or replace it with --overwrite"):
        run([10, 25])
    run([10, 25], overwrite=True)
    assert {folder.name for folder in (tmp_path / "sets").iterdir() if folder.is_dir()} == {"p-10hz", "p-25hz"}


def test_two_datasets_of_one_name_are_refused(spec: FusionSpec) -> None:
    with pytest.raises(RoboCacheError, match="a-10hz is the name of two datasets"):
        outputs_of([("a", spec), ("a", spec)], [10], NO_MEDIA)
    with pytest.raises(RoboCacheError, match="a-10hz is the name of two datasets"):
        outputs_of([("a", spec)], [10, 10], NO_MEDIA)
    with pytest.raises(RoboCacheError, match=f"use 1 to {MAX_OUTPUTS}"):
        outputs_of([("a", spec)], range(1, MAX_OUTPUTS + 2), NO_MEDIA)
    with pytest.raises(RoboCacheError, match="options: those of a run are not of a dataset"):
        Output("a", spec, ExportOptions(overwrite=True))


@pytest.mark.parametrize("name", [".hidden", "a/b", ".."])
def test_a_name_that_is_not_a_folder_is_refused(spec: FusionSpec, name: str) -> None:
    with pytest.raises(RoboCacheError, match="cannot be the name of a folder"):
        Output(name, spec)
