"""Writes a dataset in several formats: all tasks of all formats, and then the last step of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.dataset.exported_dataset import ExportedDataset
from robocache_ros.export.engines.task_engine import Engine
from robocache_ros.export.formats import DatasetFormat
from robocache_ros.export.formats.file_tasks import WrittenByTasks
from robocache_ros.export.merging.merge_tasks import MergeFolders, MergeTask, MergeWork, Written, merge_tasks
from robocache_ros.export.pieces.progress import Progress
from robocache_ros.export.publish import sync_files
from robocache_ros.export.validate.checksum_list import digests_of, write_checksums


@contextmanager
def written_formats(
    dataset: ExportedDataset,
    formats: Sequence[DatasetFormat],
    folders: MergeFolders,
    engine: Engine,
    tell: Progress,
) -> Iterator[dict[str, str]]:
    """Write a dataset in formats; on exit, the checksums of their files are written, and the files are on disk.

    Yields the SHA-256 of the files that are staged, by their names in the dataset.

    Args:
        dataset: the contents.
        formats: in any order.
        folders: for the files; those of the formats are empty.
        engine: runs the tasks.
        tell: called with the progress.
    """
    work, tasks = MergeWork(dataset, folders), merge_tasks(dataset, formats)
    with _Completion(folders.formats) as completion:
        results: dict[int, Any] = {}
        staged: dict[str, str] = {}

        def done(task: MergeTask, written: Written | RoboCacheError) -> None:
            if isinstance(written, RoboCacheError):
                raise written
            results[task.number] = written.value
            if written.digests is not None:
                start = folders.name_of(task.format)
                staged.update({start + name: digest for name, digest in written.digests.items()})
            completion.add(task.format, written)

        engine.run(work, tasks, done, tell)
        if stats := dict(results[task.number] for task in tasks if not task.format):
            dataset.stats = {name: stats[name] for name in dataset.stats_names}
        for format_ in formats:
            if isinstance(format_, WrittenByTasks):
                values = [results[task.number] for task in tasks if task.format == format_.name]
                last = work.write(format_.name, partial(format_.finish, results=values))
                completion.add(format_.name, last)
        yield staged


class _Completion:
    """Computes the checksums of files and flushes them, in a thread beside the tasks; on exit writes the checksums."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders
        self._pool = ThreadPoolExecutor(1, "complete")
        self._digests: dict[str, list[Future[Mapping[str, str]]]] = {name: [] for name in folders}

    def add(self, format_: str, written: Written) -> None:
        """Complete files of a format."""
        if written.files:
            self._digests[format_].append(self._pool.submit(_complete, self._folders[format_], written))

    def __enter__(self) -> _Completion:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for name, completed in self._digests.items() if kind is None else ():
                digests = {file: digest for of_task in completed for file, digest in of_task.result().items()}
                write_checksums(self._folders[name], digests)
        finally:
            self._pool.shutdown(cancel_futures=True)


def _complete(folder: Path, written: Written) -> Mapping[str, str]:
    if written.digests is not None:
        return written.digests
    digests = digests_of(folder, written.files)
    sync_files(folder / name for name in written.files)
    return digests
