"""The tasks of a merge: each writes files of one dataset format, in any process."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from robocache_ros.export.dataset.exported_dataset import ExportedDataset
from robocache_ros.export.engines.task_engine import Resources, Task
from robocache_ros.export.formats import DatasetFormat, load_format
from robocache_ros.export.formats.file_tasks import FileTask, WrittenByTasks
from robocache_ros.export.pieces.progress import Progress
from robocache_ros.export.statistics import Stats
from robocache_ros.export.validate.checksum_list import digests_of, files_of
from robocache_ros.remote.object_store import ObjectStore


@dataclass(frozen=True)
class MergeTask(Task):
    """Files of a format, or the statistics of a feature, which several formats use.

    Attributes:
        number: in the order of the tasks.
        format: name of the format; empty: statistics.
        write: returns the value of a `Written`, given the dataset and the folder for the files.
    """

    is_long: ClassVar[bool] = False
    number: int
    format: str
    write: Callable[[ExportedDataset, Path], Any]


@dataclass(frozen=True)
class Written:
    """What a task did.

    Attributes:
        value: for the last step of the format.
        files: names of the files, relative to the folder of the format.
        digests: their SHA-256, if they are not in this folder but staged.
    """

    value: Any
    files: tuple[str, ...]
    digests: Mapping[str, str] | None = None


@dataclass(frozen=True)
class MergeFolders:
    """Where the files of a dataset go.

    Attributes:
        root: the folder of the dataset.
        formats: the folders of the formats, by name; the root, if there is one format.
        scratch: a folder of the same file system, for files that are not complete.
        staging: where tasks put their files instead, under their names in the dataset. They have a local folder each.
        top: the name of the root in the staged dataset, with a slash at its end; empty if it is the whole dataset.
    """

    root: Path
    formats: Mapping[str, Path]
    scratch: Path
    staging: ObjectStore | None = None
    top: str = ""

    def name_of(self, format_: str) -> str:
        """Return what the names of the files of a format begin with in the staged dataset."""
        below = self.formats[format_].relative_to(self.root).as_posix()
        return self.top if below == "." else f"{self.top}{below}/"


@dataclass(frozen=True)
class MergeWork:
    """Runs the tasks of a dataset, in any process. Files appear in the folder of their format when they are complete.

    Attributes:
        dataset: the contents.
        folders: for the files. Two runs of a task do no harm.
    """

    dataset: ExportedDataset
    folders: MergeFolders

    def __call__(self, task: MergeTask, tell: Progress) -> Written:
        """Run a task."""
        if not task.format:
            return Written(task.write(self.dataset, self.folders.scratch), ())
        if self.folders.staging is None:
            return self.write(task.format, task.write)
        with tempfile.TemporaryDirectory(prefix="robocache-merge-") as folder:
            draft = Path(folder)
            value = task.write(self.dataset, draft)
            files = tuple(files_of(draft))
            self.folders.staging.put_files(draft, files, self.folders.name_of(task.format))
            return Written(value, files, digests_of(draft, files))

    def write(self, format_: str, write: Callable[[ExportedDataset, Path], Any]) -> Written:
        """Call `write` with an empty folder, and move what it writes there to the folder of a format."""
        draft = self.folders.scratch / secrets.token_hex(8)
        draft.mkdir(parents=True)
        try:
            value = write(self.dataset, draft)
            files = tuple(files_of(draft))
            _move(draft, self.folders.formats[format_])
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return Written(value, files)


def merge_tasks(dataset: ExportedDataset, formats: Sequence[DatasetFormat]) -> list[MergeTask]:
    """Return the tasks of all formats: first those of each in turn, then the statistics, if a format uses them."""
    found: list[tuple[str, FileTask]] = []
    for format_ in formats:
        if isinstance(format_, WrittenByTasks):
            found += [(format_.name, task) for task in format_.tasks(dataset)]
        else:
            nbytes = dataset.frames * 8 * dataset.layout.row_width
            found.append((format_.name, FileTask("all files", nbytes, partial(_write_all, name=format_.name))))
    if any(isinstance(format_, WrittenByTasks) and format_.needs_stats for format_ in formats):
        for name in dataset.stats_names:
            width = len(dataset.features[name].columns) if name in dataset.features else 0
            found.append(("", FileTask(name, 8 * width * dataset.frames, partial(_stats_of, name=name))))
    return [
        MergeTask(f"{format_ or 'statistics'}: {task.name}", task.nbytes, Resources(), number, format_, task.write)
        for number, (format_, task) in enumerate(found)
    ]


def _write_all(dataset: ExportedDataset, folder: Path, name: str) -> None:
    """Write a format of another package."""
    load_format(name).write(dataset, folder)


def _stats_of(dataset: ExportedDataset, _folder: Path, name: str) -> tuple[str, Stats]:
    return name, dataset.stats_of(name)


def _move(source: Path, target: Path) -> None:
    """Move all files and folders of a folder to another one of the same file system, which may have some of them."""
    for where, folders, files in os.walk(source):
        there = target / Path(where).relative_to(source)
        for name in folders:
            (there / name).mkdir(exist_ok=True)
        for name in files:
            os.replace(Path(where) / name, there / name)
