"""The export of a shard: converts its recordings; the shard that finds all of them converted writes the dataset.

The shards of an export tell each other by notes in the folder of the pieces which recordings are converted, which
failed, and that the dataset is written. They need no other connection, and may run at any time and in any order.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from robocache_ros.errors import RoboCacheError, SeveralErrors, number_of, printable
from robocache_ros.export.checksums import unread_files
from robocache_ros.export.engines.local_processes import LocalProcesses
from robocache_ros.export.engines.task_engine import Engine
from robocache_ros.export.exported_recording import FailedRecording
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.job import check_on_error, export_together
from robocache_ros.export.outputs.any_target import check_any_target, identity_of, target_path
from robocache_ros.export.outputs.dataset_plan import DatasetPlan, lines
from robocache_ros.export.outputs.export_result import ExportResult
from robocache_ros.export.outputs.new_dataset import piece_store
from robocache_ros.export.outputs.output import Output, check_outputs
from robocache_ros.export.pieces.any_pieces import AnyPieces
from robocache_ros.export.pieces.make_pieces import make_pieces
from robocache_ros.export.pieces.progress import Progress
from robocache_ros.export.pieces.recording_to_piece import PIECE, Outcome
from robocache_ros.export.recordings.planned_recording import PlannedRecording, planned
from robocache_ros.export.shards.shard import Shard
from robocache_ros.export.target import TargetInUse
from robocache_ros.remote.any_path import is_url

THREADS = 16
FAILED, DROPPED, WRITTEN = ".failed", ".dropped", ".written"  # notes, besides those of pieces


@dataclass(frozen=True)
class ShardResult:
    """The result of a shard.

    Attributes:
        shard: which one.
        own: number of recordings of this shard.
        total: number of recordings of the export, each part of one counted.
        converted: those that are converted, by this shard and all others.
        failed: those that failed.
        losses: recordings of this shard that are not in the dataset.
        written: `waiting` for other shards; `blocked` by recordings that failed, with `on_error` fail; `here`: this
            shard wrote the dataset; `elsewhere`: another export is writing it; `before`: it was complete already.
        results: of the export, if this shard wrote the dataset.
    """

    shard: Shard
    own: int
    total: int
    converted: int
    failed: int
    losses: tuple[FailedRecording, ...]
    written: str
    results: tuple[ExportResult, ...] = ()


# More than 50 lines, because of its docstring.
def export_shard(
    bags: Sequence[str | Path | PlannedRecording],
    outputs: Sequence[Output],
    out: str | Path,
    shard: Shard,
    *,
    pieces: str | Path,
    overwrite: bool = False,
    report: bool = True,
    jobs: int | None = 1,
    on_error: str = "fail",
    progress: Progress | None = None,
    device: str = "cpu",
    engine: Engine | None = None,
) -> ShardResult:
    """Convert the recordings of a shard; if all others are converted as well, write the dataset.

    All shards have the same arguments, and see the same recordings, pieces and target: on a file system that they
    share, or in a bucket. The dataset has the same bytes as that of `export_together`, which writes it too once all
    recordings are converted.

    Args:
        bags: all recordings of the export, as for `export_together`, like the other arguments.
        outputs: the datasets.
        out: the folder of the datasets, or its URL.
        shard: the part of the recordings that is converted.
        pieces: the folder or the URL in which all shards keep the pieces.
        overwrite: replace the datasets in `out`.
        report: write a report into each dataset.
        jobs: number of processes.
        on_error: `fail`: after the conversion of the others, raise an error that names the recordings of this shard
            that cannot be converted; no dataset is written. `skip`: make the dataset from the other recordings.
        progress: called with the events of the export.
        device: converts images and clouds.
        engine: converts the recordings in place of `jobs` processes.

    Errors:
        RoboCacheError: as of `export_together`, for the recordings of this shard.
    """
    recordings = planned(bags)
    check_on_error(on_error)
    engine = engine or LocalProcesses(jobs)
    check_outputs(outputs)
    _, target = target_path(out)
    store = piece_store(target, pieces)
    with file_errors(store.folder):
        export = _ShardedExport([DatasetPlan(output, recordings, device) for output in outputs], target, store)
        store.check()
        own = shard.of(export.recordings)
        if export.is_written():
            return export.result(shard, own, (), "before")
        with file_errors(target):
            check_any_target(target, overwrite=overwrite)
        losses = export.convert(own, engine, progress)
        told = export.result(shard, own, losses, "waiting")
        failed = [loss.reason for loss in losses if not loss.dropped]
        if failed and on_error == "fail":
            raise SeveralErrors(
                f"{lines(failed)}\n{printable(out, 40)}: no dataset, because {len(failed)} of "
                f"{number_of(len(own), 'recording')} of shard {shard} failed; run it again after fixing these, "
                "or with --on-error skip"
            )
        if told.failed and on_error == "fail":
            return replace(told, written="blocked")
        if told.converted + told.failed < told.total:
            return told
        try:
            results = export_together(
                recordings,
                outputs,
                out,
                overwrite=overwrite,
                report=report,
                jobs=jobs,
                on_error=on_error,
                progress=progress,
                pieces=pieces,
                device=device,
                engine=engine,
            )
        except TargetInUse:
            return replace(told, written="elsewhere")
        except RoboCacheError:
            if not export.is_written():  # meanwhile, by another shard
                raise
            return replace(told, written="before")
        export.note_written()
        if not any(result.recordings for result in results):  # another shard was first
            return replace(told, written="before")
        return replace(told, written="here", results=results)


class _ShardedExport:
    """The datasets of an export, and what its shards have noted about them."""

    def __init__(self, datasets: Sequence[DatasetPlan], target: Path, store: AnyPieces) -> None:
        self._datasets, self._target, self._store = datasets, target, store
        self.recordings = tuple(dict.fromkeys(each for dataset in datasets for each in dataset.plan.distinct))
        with ThreadPoolExecutor(THREADS, "files") as pool:  # each waits for answers, of recordings at URLs
            self._keys = dict(zip(self.recordings, pool.map(self._keys_of, self.recordings), strict=True))

    def _keys_of(self, recording: PlannedRecording) -> tuple[str, ...]:
        """Return the names of the notes about a recording, for each dataset; none if it cannot be read."""
        with suppress(OSError, RoboCacheError):
            files = unread_files(recording.path)
            return tuple(dataset.plan.key(recording, files) for dataset in self._datasets)
        return ()

    def convert(
        self, own: Sequence[PlannedRecording], engine: Engine, progress: Progress | None
    ) -> tuple[FailedRecording, ...]:
        """Make the pieces of recordings; note and return those that fail."""
        if not own:
            return ()
        plans = {dataset.name: replace(dataset.plan, recordings=tuple(own)) for dataset in self._datasets}
        with engine:
            made = make_pieces(plans, self._store, engine, progress)
        losses: dict[str, FailedRecording] = {}
        for number, dataset in enumerate(self._datasets):
            for recording, outcome in made[dataset.name].items():
                if outcome.error:
                    loss = FailedRecording(recording.path, outcome.error, dropped=outcome.dropped)
                    losses[outcome.error] = loss
                    self._note_failure(recording, number, outcome)
        return tuple(losses.values())

    def _note_failure(self, recording: PlannedRecording, dataset: int, outcome: Outcome) -> None:
        for key in self._keys[recording][dataset : dataset + 1]:
            self._store.note(key + (DROPPED if outcome.dropped else FAILED), outcome.error)

    def result(
        self, shard: Shard, own: Sequence[PlannedRecording], losses: tuple[FailedRecording, ...], written: str
    ) -> ShardResult:
        """Return the result of a shard, with the numbers of recordings that are noted."""
        notes = self._store.notes()
        converted = failed = 0
        for keys in self._keys.values():
            done = [key + PIECE in notes or key + DROPPED in notes for key in keys]
            if done and all(done):
                converted += 1
            elif done and all(made or key + FAILED in notes for made, key in zip(done, keys, strict=True)):
                failed += 1
        return ShardResult(shard, len(own), len(self._keys), converted, failed, losses, written)

    def is_written(self) -> bool:
        """Whether the datasets in the target are those that a shard of this export has written there."""
        noted = self._store.noted(self._written)
        return bool(noted) and noted == identity_of(self._target, self._datasets)

    def note_written(self) -> None:
        """Note that the datasets are written."""
        self._store.note(self._written, identity_of(self._target, self._datasets))

    @property
    def _written(self) -> str:
        """The name of the note, by all that determines the datasets."""
        told = [
            [dataset.name, asdict(dataset.plan.options), [[r.task, r.success] for r in dataset.plan.recordings]]
            for dataset in self._datasets
        ]
        keys = [self._keys[r.frames_of] for r in self._datasets[0].plan.recordings]
        target = str(self._target) if is_url(self._target) else os.path.realpath(self._target)
        text = json.dumps([target, told, keys], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest() + WRITTEN
