"""Exports that are divided: each shard converts a part of the recordings, and the last one writes the dataset."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from heapq import heapify, heapreplace

from robocache_ros.errors import RoboCacheError, SeveralErrors, number_of, printable
from robocache_ros.exporter.datasets import (
    DatasetPlan,
    ExportResult,
    check_any_target,
    failure_lines,
    identity_of,
    make_datasets,
)
from robocache_ros.exporter.executors import Executor
from robocache_ros.exporter.piece_store import PIECE, PieceStore
from robocache_ros.exporter.pieces import make_pieces, record_failure, size_of, unread_files
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Progress
from robocache_ros.exporter.recordings import MAX_RECORDINGS
from robocache_ros.exporter.request import ExportRequest
from robocache_ros.exporter.target import piece_store
from robocache_ros.formats.dataset_folder import TargetInUse
from robocache_ros.formats.recording import FailedRecording
from robocache_ros.storage.errors import file_errors
from robocache_ros.storage.paths import AnyPath, is_url

_WRITTEN = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


@dataclass(frozen=True)
class Shard:
    """The shard `index` of `count`."""

    index: int  # 0 to count - 1, as Kubernetes and Slurm number the tasks of a job
    count: int  # the number of shards

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count <= MAX_RECORDINGS:
            raise RoboCacheError(
                f"shard: {self.index}/{self.count} does not exist; the shards of {self.count} are 0/{self.count} to "
                f"{self.count - 1}/{self.count}"
                if 0 < self.count <= MAX_RECORDINGS
                else f"shard: {self.count:,} shards; use 1 to {MAX_RECORDINGS:,}"
            )

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `INDEX/COUNT`, such as `0/32`, the first of 32 shards."""
        written = _WRITTEN.fullmatch(text)
        if not written:
            raise RoboCacheError(
                f"shard: {printable(text, 40)!r} is not INDEX/COUNT; write 0/32 for the first of 32 shards"
            )
        return cls(int(written[1]), int(written[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def of(self, recordings: Iterable[PlannedRecording]) -> tuple[PlannedRecording, ...]:
        """Return the recordings of this shard, in their order.

        The largest recording goes first, each to the shard with the fewest bytes so far, and of equal ones to the first
        shard. All parts of a recording are in one shard. The same recordings are always divided in the same way.
        """
        recordings = tuple(recordings)
        sizes = {path: size_of(path) for path in dict.fromkeys(recording.path for recording in recordings)}
        shards = [(0, index) for index in range(self.count)]
        heapify(shards)
        own = set()
        for path in sorted(sizes, key=sizes.__getitem__, reverse=True):  # stable: equal sizes stay in their order
            size, index = shards[0]
            heapreplace(shards, (size + max(sizes[path], 1), index))
            if index == self.index:
                own.add(path)
        return tuple(recording for recording in recordings if recording.path in own)


# The export of a shard: converts its recordings; the shard that finds all of them converted writes the dataset.
#
# The shards of an export find in the folder of the pieces which recordings are converted, which failed, and whether the
# dataset is written. They need no other connection, and may run at any time and in any order.


THREADS = 16
WRITTEN = ".written"  # a note, besides those of pieces


@dataclass(frozen=True)
class ShardResult:
    """The result of a shard."""

    shard: Shard  # which one
    own: int  # number of recordings of this shard
    total: int  # number of recordings of the export, each part of one counted
    converted: int  # those that are converted, by this shard and all others
    failed: int  # those that failed
    losses: tuple[FailedRecording, ...]  # recordings of this shard that are not in the dataset
    # `waiting` for other shards; `blocked` by recordings that failed, with `on_error` fail; `here`: this shard wrote
    # the dataset; `elsewhere`: another export is writing it; `before`: it was complete already
    written: str
    results: tuple[ExportResult, ...] = ()  # of the export, if this shard wrote the dataset


def convert_shard(request: ExportRequest, executor: Executor, progress: Progress | None = None) -> ShardResult:
    """Convert the recordings of a shard; if all others are converted as well, write the datasets.

    All shards have the same request but for its shard, and see the same recordings, pieces and target: on a file system
    that they share, or in a bucket. The datasets have the same bytes as without shards. With `on_error` fail,
    recordings of this shard that cannot be converted are an error after the conversion of the others, and no dataset
    is written.

    Errors:
        RoboCacheError: as of `export_together`, for the recordings of this shard.
    """
    options, target = request.options, request.target
    if options.shard is None or options.pieces is None:
        raise RoboCacheError("shard: needs a folder of pieces that all shards can write; give pieces")
    shard = Shard.parse(options.shard)
    store = piece_store(target, options.pieces)
    with file_errors(store.folder):
        plans = [DatasetPlan(output, request.recordings, options.device) for output in request.outputs]
        export = _ShardedExport(plans, target, store)
        store.check()
        own = shard.of(export.recordings)
        if export.is_written():
            return export.result(shard, own, (), "before")
        with file_errors(target):
            check_any_target(target, overwrite=options.overwrite)
        losses = export.convert(own, executor, progress)
        result = export.result(shard, own, losses, "waiting")
        failed = [loss.reason for loss in losses if not loss.dropped]
        if failed and options.on_error == "fail":
            raise SeveralErrors(
                f"{failure_lines(failed)}\n{printable(request.out, 40)}: no dataset, because {len(failed)} of "
                f"{number_of(len(own), 'recording')} of shard {shard} failed; run it again after fixing these, "
                "or with --on-error skip"
            )
        if result.failed and options.on_error == "fail":
            return replace(result, written="blocked")
        if result.converted + result.failed < result.total:
            return result
        try:
            results = make_datasets(request, executor, progress)
        except TargetInUse:
            return replace(result, written="elsewhere")
        except RoboCacheError:
            if not export.is_written():  # meanwhile, by another shard
                raise
            return replace(result, written="before")
        export.note_written()
        if not any(result.recordings for result in results):  # another shard was first
            return replace(result, written="before")
        return replace(result, written="here", results=results)


class _ShardedExport:
    """The datasets of an export, and what its shards have made of them."""

    def __init__(self, datasets: Sequence[DatasetPlan], target: AnyPath, store: PieceStore) -> None:
        self._datasets, self._target, self._store = datasets, target, store
        self.recordings = tuple(dict.fromkeys(each for dataset in datasets for each in dataset.plan.distinct))
        with ThreadPoolExecutor(THREADS, "files") as pool:  # each waits for answers, of recordings at URLs
            self._keys = dict(zip(self.recordings, pool.map(self._keys_of, self.recordings), strict=True))

    def _keys_of(self, recording: PlannedRecording) -> tuple[str, ...]:
        """Return the keys of a recording without reading it, for each dataset; none if it cannot be opened."""
        with suppress(OSError, RoboCacheError):
            files = unread_files(recording.path)
            return tuple(dataset.plan.key(recording, files) for dataset in self._datasets)
        return ()

    def convert(
        self, own: Sequence[PlannedRecording], executor: Executor, progress: Progress | None
    ) -> tuple[FailedRecording, ...]:
        """Make the pieces of recordings; record and return those that fail."""
        if not own:
            return ()
        plans = {dataset.name: replace(dataset.plan, recordings=tuple(own)) for dataset in self._datasets}
        with executor:
            made = make_pieces(plans, self._store, executor, progress)
        losses: dict[str, FailedRecording] = {}
        for number, dataset in enumerate(self._datasets):
            for recording, outcome in made[dataset.name].items():
                if outcome.error:
                    loss = FailedRecording(recording.path, outcome.error, dropped=outcome.dropped)
                    losses[outcome.error] = loss
                    for key in self._keys[recording][number : number + 1]:
                        record_failure(self._store, key, outcome)
        return tuple(losses.values())

    def result(
        self, shard: Shard, own: Sequence[PlannedRecording], losses: tuple[FailedRecording, ...], written: str
    ) -> ShardResult:
        """Return the result of a shard, with the numbers of recordings of all shards."""
        store, notes = self._store, self._store.notes()
        states = store.ended({key for keys in self._keys.values() for key in keys})
        converted = failed = 0
        for keys in self._keys.values():
            ended = {key for key in keys if key in states or key + PIECE in notes}
            made = {key for key in ended if key + PIECE in notes or states[key].done}
            failures = [store.failure(key) for key in ended - made if states[key].failed]
            if not keys or len(made) + len(failures) < len(set(keys)):
                continue
            if all(failure and failure.dropped for failure in failures):
                converted += 1
            else:
                failed += 1
        return ShardResult(shard, len(own), len(self._keys), converted, failed, losses, written)

    def is_written(self) -> bool:
        """Whether the datasets in the target are those that a shard of this export has written there."""
        noted = self._store.noted(self._written)
        return bool(noted) and noted == identity_of(self._target, self._datasets)

    def note_written(self) -> None:
        self._store.note(self._written, identity_of(self._target, self._datasets))

    @property
    def _written(self) -> str:
        """The name of the note, by all that determines the datasets."""
        contents = [
            [dataset.name, asdict(dataset.plan.options), [[r.task, r.success] for r in dataset.plan.recordings]]
            for dataset in self._datasets
        ]
        keys = [self._keys[r.frames_of] for r in self._datasets[0].plan.recordings]
        target = str(self._target) if is_url(self._target) else os.path.realpath(self._target)
        text = json.dumps([target, contents, keys], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest() + WRITTEN
