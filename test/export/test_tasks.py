"""The tasks and shards of an export give the same bytes in any order, process and number."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import shards as shard_module
from robocache_ros.exporter.executors import LocalProcesses, Resources, Task, finished
from robocache_ros.exporter.planned_recording import Moment, PlannedRecording, planned
from robocache_ros.exporter.progress import Progress
from robocache_ros.exporter.request import Output
from robocache_ros.exporter.shards import Shard, ShardResult
from robocache_ros.exporter.target import new_dataset
from robocache_ros.formats import webdataset
from robocache_ros.formats import write as shared
from robocache_ros.formats.registry import WRITERS
from robocache_ros.formats.rlds import write as rlds
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.errors import file_errors
from test.export.conftest import NO_MEDIA, Contents, Elsewhere, contents, export_shard, named
from test.exporting import export

ALL = tuple(name for name in WRITERS if name != "delta")  # which does not install everywhere
OPTIONS = DatasetOptions(formats=ALL, codec="h264", preset="ultrafast", rate_hz=25, split_s=0.4, task="lift the cube")


@pytest.fixture(scope="module")
def separate(bags, spec, tmp_path_factory) -> Contents:
    """The datasets that one process writes, one file after the other."""
    return contents(export(bags, spec, tmp_path_factory.mktemp("alone") / "set", OPTIONS).out)


@pytest.mark.slow
def test_tasks_of_other_machines_give_the_same_bytes(bags, spec, tmp_path, separate, monkeypatch):
    monkeypatch.setattr(shared, "GROUP_BYTES", 1)
    executor = Elsewhere()
    assert contents(export(bags, spec, tmp_path / "set", OPTIONS, executor=executor).out) == separate
    assert {"mcap: episodes 1 to 1", "lerobot: videos/front, file 0", "statistics: action"} <= set(executor.tasks)


def test_several_jobs_give_the_same_bytes(bags, spec, tmp_path, separate, monkeypatch):
    monkeypatch.setattr(LocalProcesses, "parallel", lambda _self, tasks: 1 if tasks[0].is_long else 3)  # in threads
    assert contents(export(bags, spec, tmp_path / "set", OPTIONS, jobs=3).out) == separate


def test_shards_are_written_by_a_task_each_and_have_the_same_bytes(bags, spec, tmp_path, monkeypatch):
    for module in (rlds, webdataset):
        monkeypatch.setattr(module, "SHARD_BYTES", 1)
    options, executor = replace(OPTIONS, formats=("rlds", "webdataset")), Elsewhere()
    one = contents(export(bags, spec, tmp_path / "one" / "set", options).out)
    assert contents(export(bags, spec, tmp_path / "other" / "set", options, executor=executor).out) == one
    for name in options.formats:
        tasks = sorted(task for task in executor.tasks if task.startswith(f"{name}: shard"))
        assert tasks == [f"{name}: shard {index} of {len(tasks)}" for index in range(len(tasks))]
        assert len(tasks) > 2


@pytest.mark.parametrize("module", [pytest.param(rlds, marks=pytest.mark.slow), webdataset], ids=["rlds", "webdataset"])
def test_shards_have_about_the_stated_size(module, bags, spec, tmp_path, monkeypatch):
    format_ = "rlds" if module is rlds else "webdataset"
    options = replace(OPTIONS, formats=(format_,), media="image", split_s=0.1)

    def sizes(name: str) -> list[int]:
        out = export(bags, spec, tmp_path / name, options, report=False).out
        return [file.stat().st_size for file in sorted(out.rglob("*train*"))]

    (whole,) = sizes("whole")
    monkeypatch.setattr(module, "SHARD_BYTES", whole // 4)
    shards = sizes("shards")
    assert 3 <= len(shards) <= 5
    assert all(whole // 8 < size < whole // 2 for size in shards[:-1])


@pytest.mark.parametrize(
    "name", [name if name in ("lerobot", "mcap") else pytest.param(name, marks=pytest.mark.slow) for name in ALL]
)
def test_several_formats_have_the_bytes_of_each_separately(name, bags, spec, tmp_path, separate):
    found = contents(export(bags, spec, tmp_path / "set", replace(OPTIONS, formats=(name,)), report=False).out)
    of_format = {file[len(name) + 1 :]: data for file, data in separate.items() if file.startswith(f"{name}/")}
    reported = ("robocache.json", "SHA256SUMS", "dataset.hdf5", ".zattrs")  # state the formats of the export
    assert found.keys() - {".robocache-dataset"} == of_format.keys()
    assert all(found[file] == of_format[file] for file in of_format if not file.endswith(reported))


def test_an_error_in_a_thread_ends_the_tasks(monkeypatch):
    def work(task: Task, tell: Progress) -> str:
        if task.name == "task 2":
            raise RoboCacheError("task 2: failed; retry")
        return task.name

    monkeypatch.setattr(Task, "is_long", False)  # so that they run in threads
    done: list[str] = []
    tasks = [Task(f"task {k}", 100 - k, Resources()) for k in range(100)]
    with LocalProcesses(2) as executor, pytest.raises(RoboCacheError, match="task 2: failed; retry"):
        done.extend(result for _, result in executor.map(work, tasks, lambda _event: None))
    assert {"task 0", "task 1"} <= set(done)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError("Couldn't deserialize thrift"), "/out: Couldn't deserialize thrift; choose another folder"),
        (OSError(28, "ignored", "/out/file"), "/out/file: No space left on device; free some space"),
        (OSError("write failed: [errno 28] full"), "/out: No space left on device; free some space"),
    ],
)
def test_an_error_of_a_file_in_another_process_has_its_reason(error, expected):
    def fail(_task: Task, _progress: Progress) -> None:
        raise error

    returned = pickle.loads(pickle.dumps(finished(fail, Task("file", 1, Resources()), lambda _event: None)))
    with pytest.raises(RoboCacheError) as raised, file_errors(Path("/out")):
        raise returned
    assert str(raised.value).startswith(expected)


# How the recordings of an export are divided.


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 12))
def test_each_recording_is_in_one_shard_and_no_shard_is_larger_by_more_than_one_recording(sizes, count):
    recordings = planned([f"{number:04}.mcap" for number in range(len(sizes))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_module, "size_of", lambda path: sizes[int(path.stem)])
        shards = [Shard(index, count).of(recordings) for index in range(count)]
    assert sorted((each for shard in shards for each in shard), key=lambda each: each.path) == list(recordings)
    loads = [sum(max(sizes[int(each.path.stem)], 1) for each in shard) for shard in shards]
    assert max(loads) - min(loads) <= max([1, *sizes])


def test_the_largest_recording_goes_first_and_others_in_turn_and_the_parts_of_one_are_in_one_shard(monkeypatch):
    recordings = planned([f"{number}.mcap" for number in range(7)])  # without files, so of no size
    assert Shard(1, 3).of(recordings) == (recordings[1], recordings[4])
    parts = tuple(PlannedRecording(Path("a.mcap"), start=Moment(second, relative=True)) for second in range(4))
    other = PlannedRecording(Path("b.mcap"))
    assert [Shard(index, 2).of([*parts, other]) for index in range(2)] == [parts, (other,)]
    monkeypatch.setattr(shard_module, "size_of", lambda path: {"1": 1, "2": 1, "3": 2}[path.stem])
    assert [Shard(index, 2).of(recordings[1:4]) for index in range(2)] == [recordings[3:4], recordings[1:3]]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("the shards of 32 are 0/32 to 31/32", "32/32"),
        *(("use 1 to", text) for text in ("0/0", "1/999999")),
        *(("is not INDEX/COUNT", text) for text in ("/32", "-1/32", "1/٣", "1" * 5000 + "/2")),
    ],
)
def test_a_shard_is_written_as_index_and_count_and_one_that_does_not_exist_is_one_line(reason, text):
    assert str(Shard.parse("31/32")) == "31/32"
    with pytest.raises(RoboCacheError, match=reason) as refused:
        Shard.parse(text)
    assert len(str(refused.value)) < 190


# An export that is divided into shards: the same dataset, written once, whatever happens to its shards.

Run = Callable[..., ShardResult]


@pytest.fixture
def recordings(bags, tmp_path) -> list[Path]:
    """Three recordings."""
    copy = Path(shutil.copytree(bags[1], tmp_path / "raw" / "third"))
    return [*bags, copy]


@pytest.fixture
def damaged(tmp_path) -> Path:
    """A recording that cannot be converted."""
    file = tmp_path / "raw" / "damaged.mcap"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"\x89MCAP0\r\n" + bytes(100))
    return file


@pytest.fixture
def run(recordings, spec, tmp_path) -> Run:
    """Runs a shard, by default of three recordings in three shards."""

    def one(index: int, count: int = 3, bags: list[Path] = recordings, **more: Any) -> ShardResult:
        outputs, options = [Output("", spec, NO_MEDIA)], {"pieces": tmp_path / "pieces", **more}
        return export_shard(bags, outputs, tmp_path / "out" / "set", f"{index}/{count}", **options)

    return one


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out" / "set"


@pytest.fixture
def fresh(recordings, spec, tmp_path) -> Callable[..., Contents]:
    """The dataset of an export that is not divided."""
    out = tmp_path / "fresh" / "set"
    return lambda bags=recordings, **more: contents(export(bags, spec, out, NO_MEDIA, **more).out)


def test_the_last_shard_writes_the_dataset_of_an_export_that_is_not_divided(run, out, fresh):
    for index, converted, end in ((2, 1, "waiting"), (0, 2, "waiting"), (1, 3, "here")):
        reported = run(index)
        assert (reported.own, reported.converted, reported.total, reported.written) == (1, converted, 3, end)
        assert out.exists() == (end == "here")
    assert contents(out) == fresh()


def test_an_empty_shard_converts_nothing_and_an_undivided_export_uses_pieces(run, recordings, spec, out, tmp_path):
    seen: list[str] = []
    reported = run(4, 5, progress=named(seen))
    assert (reported.own, reported.converted, reported.written, seen) == (0, 0, "waiting", [])
    run(0), run(1)
    done = export(recordings, spec, out, NO_MEDIA, pieces=tmp_path / "pieces", progress=named(seen))
    assert done.notes[0] == "2 of 3 recordings were converted by an earlier export and reused"
    assert len(set(seen)) == 1


def test_a_shard_that_runs_again_converts_nothing_and_leaves_the_dataset(run, out):
    for index in range(3):
        run(index)
    before = (out / "meta" / "info.json").stat().st_mtime_ns
    seen: list[str] = []
    for overwrite in (False, True):
        assert run(0, overwrite=overwrite, progress=named(seen)).written == "before"
    assert (seen, (out / "meta" / "info.json").stat().st_mtime_ns) == ([], before)


def test_shards_replace_a_dataset_only_if_asked_and_when_all_are_converted(run, recordings, spec, out, fresh):
    before = contents(export(recordings[:1], spec, out, NO_MEDIA).out)
    seen: list[str] = []
    with pytest.raises(RoboCacheError, match="exists; choose another folder"):
        run(0, progress=named(seen))
    assert seen == []
    for index in range(3):
        assert contents(out) == before
        run(index, overwrite=True)
    assert contents(out) == fresh()


def test_a_shard_whose_dataset_another_export_writes_leaves_it_to_that_one(run, out):
    run(0), run(1)
    with new_dataset(out) as new:
        assert run(2).written == "elsewhere"
        (new.folder / "meta").mkdir()
    assert [entry.name for entry in out.iterdir()] == ["meta"]


def test_a_recording_that_fails_is_left_out_with_on_error_skip(run, bags, damaged, out, fresh):
    recordings = [bags[0], damaged, bags[1]]
    reported = [run(index, bags=recordings, on_error="skip") for index in (2, 0, 1)]
    assert [len(result.losses) for result in reported] == [1, 0, 0]
    assert reported[-1].written == "here"
    assert contents(out) == fresh(recordings, on_error="skip")


def test_a_recording_that_failed_is_converted_when_it_is_repaired(run, bags, damaged):
    recordings = [bags[0], damaged]
    run(1, 2, bags=recordings, on_error="skip")
    damaged.write_bytes(next(bags[1].glob("*.mcap")).read_bytes())
    assert [run(index, 2, bags=recordings).written for index in (1, 0)] == ["waiting", "here"]


def test_several_formats_and_datasets_are_written_together(recordings, spec, tmp_path):
    outputs = [
        Output("fast", spec, DatasetOptions(media="none", formats=("lerobot", "robomimic"))),
        Output("slow", spec, DatasetOptions(media="none", rate_hz=10)),
    ]
    for ends in (["waiting", "here"], ["before"] * 2):
        given = {"pieces": tmp_path / "pieces"}
        shards = [export_shard(recordings, outputs, tmp_path / "sets", f"{index}/2", **given) for index in range(2)]
        assert [shard.written for shard in shards] == ends
    assert (tmp_path / "sets" / "fast" / "robomimic" / "SHA256SUMS").exists()
