"""The files of datasets are tasks: in any order, in any process, and more than once, they give the same bytes."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.executors import LocalProcesses, Resources, Task, finished
from robocache_ros.exporter.job import export
from robocache_ros.exporter.progress import Progress
from robocache_ros.formats import webdataset
from robocache_ros.formats import write as shared
from robocache_ros.formats.registry import WRITERS
from robocache_ros.formats.rlds import write as rlds
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.errors import file_errors
from test.export.merging.elsewhere import Elsewhere
from test.export.pieces.conftest import Contents, contents

ALL = tuple(name for name in WRITERS if name != "delta")  # which does not install everywhere
OPTIONS = DatasetOptions(formats=ALL, codec="h264", preset="ultrafast", rate_hz=25, split_s=0.4, task="lift the cube")


@pytest.fixture(scope="module")
def separate(bags: list[Path], spec: FusionSpec, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """The datasets that one process writes, one file after the other."""
    return contents(export(bags, spec, tmp_path_factory.mktemp("alone") / "set", OPTIONS).out)


@pytest.mark.slow
def test_tasks_of_other_machines_give_the_same_bytes(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, separate: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "GROUP_BYTES", 1)
    executor = Elsewhere()
    assert contents(export(bags, spec, tmp_path / "set", OPTIONS, executor=executor).out) == separate
    assert {"mcap: episodes 1 to 1", "lerobot: videos/front, file 0", "statistics: action"} <= set(executor.tasks)


def test_several_jobs_give_the_same_bytes(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, separate: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalProcesses, "parallel", lambda _self, tasks: 1 if tasks[0].is_long else 3)  # in threads
    assert contents(export(bags, spec, tmp_path / "set", OPTIONS, jobs=3).out) == separate


def test_shards_are_written_by_a_task_each_and_have_the_same_bytes(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_shards_have_about_the_stated_size(
    module: ModuleType, bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_several_formats_have_the_bytes_of_each_separately(
    name: str, bags: list[Path], spec: FusionSpec, tmp_path: Path, separate: Contents
) -> None:
    found = contents(export(bags, spec, tmp_path / "set", replace(OPTIONS, formats=(name,)), report=False).out)
    of_format = {file[len(name) + 1 :]: data for file, data in separate.items() if file.startswith(f"{name}/")}
    reported = ("robocache.json", "SHA256SUMS", "dataset.hdf5", ".zattrs")  # state the formats of the export
    assert found.keys() - {".robocache-dataset"} == of_format.keys()
    assert all(found[file] == of_format[file] for file in of_format if not file.endswith(reported))


@dataclass(frozen=True)
class Short(Task):
    """A task that fails, or does not."""

    is_long = False
    fails: bool


def test_an_error_in_a_thread_ends_the_tasks() -> None:
    def work(task: Short, tell: Progress) -> str:
        if task.fails:
            raise RoboCacheError(f"{task.name}: failed; retry")
        return task.name

    done: list[str] = []
    tasks = [Short(f"task {k}", 100 - k, Resources(), k == 2) for k in range(100)]
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
def test_an_error_of_a_file_in_another_process_has_its_reason(error: OSError, expected: str) -> None:
    def fail(_task: Task, _progress: Progress) -> None:
        raise error

    returned = pickle.loads(pickle.dumps(finished(fail, Task("file", 1, Resources()), lambda _event: None)))
    with pytest.raises(RoboCacheError) as raised, file_errors(Path("/out")):
        raise returned
    assert str(raised.value).startswith(expected)
