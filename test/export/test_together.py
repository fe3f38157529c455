"""Several datasets of one export: each has the bytes of an export of its own, and each recording is read once."""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export_together, outputs_of
from robocache_ros.exporter.options import ExportOptions
from robocache_ros.exporter.planned_recording import Moment, PlannedRecording
from robocache_ros.exporter.progress import Event, Failed
from robocache_ros.exporter.request import MAX_OUTPUTS, Output
from robocache_ros.formats import pictures
from robocache_ros.formats.pictures import JPEG_QUALITY
from robocache_ros.formats.registry import known_formats
from robocache_ros.formats.video import VideoFile
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import LIFT, NO_MEDIA, by_share, contents, named
from test.exporting import export

Bags = Sequence[Path | PlannedRecording]


@pytest.fixture(scope="session")
def arm(spec) -> FusionSpec:
    """Some of the streams, with another delay."""
    streams = tuple(stream for stream in spec.streams if stream.name in ("joint_position", "action"))
    return replace(spec, streams=streams, delay_ms=40.0)


@pytest.fixture
def separate(tmp_path) -> Callable[..., dict[str, bytes]]:
    """The files of a dataset that is exported on its own."""

    def export_one(bags: Bags, output: Output, report: bool = False) -> dict[str, bytes]:
        out = tmp_path / "alone" / output.name
        return contents(export(bags, output.spec, out, output.options, report=report).out)

    return export_one


def run(bags: Bags, outputs: Sequence[Output], folder: Path, **given: Any) -> list[dict[str, bytes]]:
    """The files of the datasets of one export, without reports."""
    return [contents(each.out) for each in export_together(bags, outputs, folder / "sets", report=False, **given)]


def test_datasets_of_two_specs_and_rates_have_the_bytes_of_separate_exports(bags, spec, arm, tmp_path, separate):
    options = DatasetOptions(formats=("lerobot", "webdataset", "mcap"), codec="h264", preset="ultrafast")
    outputs = outputs_of([("panda", spec), ("arm", arm)], [50, 10], options)
    results = export_together(bags, outputs, tmp_path / "sets")
    assert [result.out.name for result in results] == ["panda-50hz", "panda-10hz", "arm-50hz", "arm-10hz"]
    for output, result in zip(outputs, results, strict=True):
        assert contents(result.out) == separate(bags, output, report=True), output.name


def test_two_processes_make_the_bytes_of_separate_exports(bags, spec, arm, tmp_path, separate):
    outputs = outputs_of([("panda", spec), ("arm", arm)], [], NO_MEDIA)
    assert run(bags, outputs, tmp_path, jobs=2) == [separate(bags, output) for output in outputs]


def test_messages_are_read_once(bags, spec, tmp_path, monkeypatch):
    read: list[bool] = []
    messages = Bag.messages

    def counted(bag: Bag, *wanted: Any, views: bool = False) -> Any:
        read.append(views)  # views: of the pass over the messages, not of the timeline
        return messages(bag, *wanted, views=views)

    monkeypatch.setattr(Bag, "messages", counted)
    export_together(bags[:1], outputs_of([("panda", spec)], [50, 25, 10], NO_MEDIA), tmp_path / "sets", report=False)
    assert sum(read) == 1


def test_formats_in_one_pass_encode_each_image_once(bags, spec, tmp_path, monkeypatch):
    save, counted = Image.Image.save, Counter()

    def saved(image: Image.Image, file: Any, kind: str | None = None, **options: Any) -> None:
        counted["jpegs"] += kind == "JPEG" and options.get("quality") == JPEG_QUALITY  # not a thumbnail of the report
        save(image, file, kind, **options)

    class Counted(VideoFile):
        def __init__(self, *given: Any) -> None:
            counted["films"] += 1
            super().__init__(*given)

        def write(self, image: Any) -> None:
            counted["frames"] += 1
            super().write(image)

    monkeypatch.setattr(Image.Image, "save", saved)
    monkeypatch.setattr(pictures, "VideoFile", Counted)
    calls = []
    for formats in (("rlds",), ("lerobot",), known_formats()):
        counted.clear()
        export(bags[1:], spec, tmp_path / "-".join(formats), DatasetOptions(formats=formats, codec="h264"))
        calls.append({name: count for name, count in counted.items() if count})
    images, films, both = calls
    assert images["jpegs"] > 50
    assert (images.keys(), films.keys()) == ({"jpegs"}, {"frames", "films"})
    assert both == images | films


def test_a_part_of_a_recording_has_the_bytes_of_a_separate_export(bags, spec, arm, tmp_path, separate):
    part = PlannedRecording(bags[0], start=Moment(300_000_000, relative=True), stop=Moment(900_000_000, relative=True))
    held = replace(arm, streams=tuple(replace(stream, on_invalid="hold") for stream in arm.streams))
    outputs = outputs_of([("panda", spec), ("held", held)], [], NO_MEDIA)
    assert run([part], outputs, tmp_path) == [separate([part], output) for output in outputs]


def test_a_separate_export_and_one_of_more_rates_convert_nothing_again(bags, spec, tmp_path):
    given, seen = {"pieces": tmp_path / "pieces", "report": False}, list[str]()
    outputs = outputs_of([("panda", spec)], [50, 10], NO_MEDIA)
    export_together(bags, outputs, tmp_path / "sets", **given)
    done = export(bags, spec, tmp_path / "panda-10hz", outputs[1].options, progress=named(seen), **given)
    assert seen == []
    assert contents(done.out) == contents(tmp_path / "sets" / "panda-10hz")
    outputs = outputs_of([("panda", spec)], [25, 10], NO_MEDIA)
    new, old = export_together(bags, outputs, tmp_path / "more", **given)
    assert new.notes == ()
    assert old.notes == ("2 of 2 recordings were converted by an earlier export and reused",)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_stopped_export_is_continued(bags, spec, arm, tmp_path, separate, share):
    def stop(name: str, done: float) -> None:
        if name == bags[1].name and done >= share:
            raise KeyboardInterrupt

    outputs = outputs_of([("panda", spec), ("arm", arm)], [10], NO_MEDIA)
    with pytest.raises(KeyboardInterrupt):
        run(bags, outputs, tmp_path, progress=by_share(stop))
    seen: list[str] = []
    assert run(bags, outputs, tmp_path, progress=named(seen)) == [separate(bags, output) for output in outputs]
    assert set(seen) == {bags[1].name}


def test_a_recording_may_be_missing_in_one_dataset_only(bags, spec, arm, tmp_path, separate):
    with Bag(bags[1]) as bag:
        types = {name: found.type for name, found in bag.topics.items() if name != "/panda/ee_pose"}
        some = [bags[0], write_bag(tmp_path / "few", types, list(bag.messages(list(types))))]
    outputs = outputs_of([("panda", spec), ("arm", arm)], [], NO_MEDIA)
    reported: list[Event] = []
    with pytest.raises(RoboCacheError, match=r"^panda-50hz: .*few: has no topic /panda/ee_pose"):
        run(some, outputs, tmp_path)
    given = {"report": False, "on_error": "skip", "progress": reported.append}
    panda, of_arm = export_together(some, outputs, tmp_path / "sets", **given)
    assert [loss.bag.name for loss in panda.failed] == ["few"]
    assert not of_arm.failed
    assert contents(of_arm.out) == separate(some, outputs[1])
    assert [event.dataset for event in reported if isinstance(event, Failed)] == ["panda-50hz"]


def test_an_episode_dropped_after_its_rows_were_written_is_dropped_in_one_dataset(bags, arm, tmp_path, separate):
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


def test_a_damaged_recording_has_the_notes_of_a_separate_export(spec, arm, tmp_path, separate):
    damaged = shutil.copytree(LIFT, tmp_path / "damaged")
    (file,) = damaged.glob("*.mcap")
    data = bytearray(file.read_bytes())
    data[5_000_000:5_000_100] = bytes(100)
    file.write_bytes(data)
    outputs = outputs_of([("panda", spec), ("arm", arm)], [10], NO_MEDIA)
    results = export_together([damaged], outputs, tmp_path / "sets", report=False)
    assert any("chunks are damaged" in note for note in results[0].recordings[0].notes)
    assert [contents(result.out) for result in results] == [separate([damaged], output) for output in outputs]


def test_all_datasets_are_replaced_or_none(bags, spec, tmp_path):
    first, other = (outputs_of([("p", spec)], rates_hz, NO_MEDIA) for rates_hz in ([10, 20], [10, 25]))
    run(bags[:1], first, tmp_path)
    with pytest.raises(RoboCacheError, match="exists; choose another folder, or replace it with --overwrite"):
        run(bags[:1], other, tmp_path)
    run(bags[:1], other, tmp_path, overwrite=True)
    assert {folder.name for folder in (tmp_path / "sets").iterdir() if folder.is_dir()} == {"p-10hz", "p-25hz"}


@pytest.mark.parametrize(
    ("names", "rates_hz", "message"),
    [
        ("aa", [10], "a-10hz is the name of two datasets"),
        ("a", [10, 10], "a-10hz is the name of two datasets"),
        ("a", range(1, MAX_OUTPUTS + 2), f"use 1 to {MAX_OUTPUTS}"),
        *(([name], [], "cannot be the name of a folder") for name in (".hidden", "a/b", "..")),
    ],
)
def test_datasets_without_a_folder_of_their_own_are_refused(spec, names, rates_hz, message):
    with pytest.raises(RoboCacheError, match=message):
        outputs_of([(name, spec) for name in names], rates_hz, NO_MEDIA)


def test_the_options_of_a_run_are_not_of_a_dataset(spec):
    with pytest.raises(RoboCacheError, match="options: those of a run are not of a dataset"):
        Output("a", spec, ExportOptions(overwrite=True))
