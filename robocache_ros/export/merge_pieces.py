"""Merges the pieces of an export: one dataset per format, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

import robocache_ros
from robocache_ros.errors import printable
from robocache_ros.export.bucket.piece_path import fetch_ahead
from robocache_ros.export.dataset.exported_dataset import ExportedDataset, Piece
from robocache_ros.export.dataset.piece_contents import CONTENTS
from robocache_ros.export.engines.task_engine import Engine
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.exported_recording import ExportedRecording, FailedRecording
from robocache_ros.export.formats import DatasetFormat
from robocache_ros.export.media.video import DEPTH_VIDEO
from robocache_ros.export.merging.merge_tasks import MergeFolders
from robocache_ros.export.merging.write_formats import written_formats
from robocache_ros.export.outputs.new_dataset import NewDataset
from robocache_ros.export.pieces import recording_file
from robocache_ros.export.pieces.plan import Plan
from robocache_ros.export.pieces.progress import Progress
from robocache_ros.export.pieces.recording_to_piece import Outcome
from robocache_ros.export.recordings.planned_recording import repeated
from robocache_ros.export.report.page import write_report
from robocache_ros.spec import FusionSpec


def needed_encodings(
    formats: Sequence[DatasetFormat], spec: FusionSpec, options: ExportOptions
) -> dict[str, tuple[str, ...]]:
    """Return the encodings of each image stream that the formats need."""
    streams = [stream for stream in spec.media if stream.kind == "image"]
    needed = {stream.name: {format_.encoding(stream, options) for format_ in formats} for stream in streams}
    if options.depth == "video":  # images of the spec may be 8-bit or depth: their messages tell
        needed = {name: found | {DEPTH_VIDEO} for name, found in needed.items()}
    return {name: tuple(sorted(filter(None, found))) for name, found in needed.items()}


def merge_pieces(
    plan: Plan,
    formats: Sequence[DatasetFormat],
    made: Sequence[Outcome],
    failed: Sequence[FailedRecording],
    new: NewDataset,
    below: str,
    name: str | None,
    engine: Engine,
    tell: Progress,
) -> tuple[ExportedRecording, ...]:
    """Write the dataset of each format from the pieces, and the report with the dataset's name.

    Args:
        plan: of the dataset.
        formats: in which it is written.
        made: the outcomes of its recordings.
        failed: recordings that are not in it.
        new: what the export writes to.
        below: the name of the dataset in it; empty if it is the only one.
        name: for the report; None: there is none.
        engine: runs a task for some files each.
        tell: called with the progress.
    """
    loaded = _loaded(plan, made)
    digests = [[str(file["sha256"]) for file in files] for _, files in loaded]
    notes = repeated(zip((outcome.recording for outcome in made if outcome.piece), digests, strict=True))
    new.notes += [note for note in notes if note not in new.notes]  # of another dataset of the export
    told = [(outcome.recording.task or plan.options.task, outcome.recording.success) for outcome in made]
    recordings = tuple(replace(one, task=task, success=s) for (one, _), (task, s) in zip(loaded, told, strict=True))
    provenance = _provenance(plan, recordings, [files for _, files in loaded], failed)
    folders = [outcome.piece for outcome in made if outcome.piece]
    pieces = [
        Piece(piece, recording.bag, task, recording.episodes, success)
        for piece, recording, (task, success) in zip(folders, recordings, told, strict=True)
    ]
    dataset = ExportedDataset(pieces, plan.layout, plan.options, provenance)
    folder = new.folder / below
    of_formats = {format_.name: folder if len(formats) == 1 else folder / format_.name for format_ in formats}
    for of_format in of_formats.values():
        of_format.mkdir(parents=True, exist_ok=True)
    staging = new.staging if engine.remote else None
    merge = MergeFolders(folder, of_formats, new.scratch, staging, f"{below}/" if below else "")
    with written_formats(dataset, formats, merge, engine, tell) as staged:
        new.staged.update(staged)
        if name is not None:
            report = folder / "report.html"
            write_report(recordings, report, dataset=name, stored=_stored(dataset, formats), failed=failed)
    return recordings


def _loaded(plan: Plan, made: Sequence[Outcome]) -> list[tuple[ExportedRecording, recording_file.Files]]:
    """Return what the pieces tell of their recordings."""
    pieces = [(outcome.piece, outcome.recording) for outcome in made if outcome.piece]
    fetch_ahead(piece / name for piece, _ in pieces for name in (recording_file.TOLD, recording_file.ARRAYS, CONTENTS))
    visibility = plan.options.visibility
    return [recording_file.load(piece, recording.path, plan.spec, visibility) for piece, recording in pieces]


def _stored(dataset: ExportedDataset, formats: Sequence[DatasetFormat]) -> dict[str, str]:
    """Describe how the formats store each stream of images or voxels."""
    stored = {}
    for stream in dataset.spec.media:
        told = [dataset.stored(stream.name, format_.encoding(stream, dataset.options)) for format_ in formats]
        stored[stream.name] = "; ".join(dict.fromkeys(told))
    return stored


def _device(plan: Plan) -> str:
    """Describe the device of an export, and what it changes."""
    if plan.device == "cpu":
        return "cpu"
    told = f"{plan.device} ({torch.cuda.get_device_name(plan.device)})"
    return f"{told}; jpeg decoded by {plan.jpeg_decoder}, whose pixels may differ" if plan.jpeg_decoder else told


def _provenance(
    plan: Plan,
    recordings: Sequence[ExportedRecording],
    checksums: Sequence[recording_file.Files],
    failed: Sequence[FailedRecording],
) -> dict[str, Any]:
    """Return the provenance: the data needed to recreate the dataset and to verify that it is identical."""
    return {
        "robocache_ros": robocache_ros.__version__,
        "options": asdict(plan.options),
        "device": _device(plan),
        "spec": plan.spec.to_dict(),
        "layout": plan.layout.to_dict(),
        "recordings": [
            {
                "bag": printable(recording.bag, 4096),
                "task": recording.task,
                "success": recording.success,
                "files": files,
                "start_ns": recording.start_ns,
                "stop_ns": recording.stop_ns,
                "ticks": len(recording.ticks_ns),
                "frames": recording.frames,
                "counters": {name: dict(counts) for name, counts in recording.counters.items()},
                "notes": list(recording.notes),
                "integrity": recording.integrity,
                **recording.clocks,
            }
            for recording, files in zip(recordings, checksums, strict=True)
        ],
        "failed": [{"bag": printable(loss.bag, 4096), "reason": printable(loss.reason, 400)} for loss in failed],
        "episodes": [
            {
                "recording": index,
                "first_tick_ns": int(recording.ticks_ns[episode.start]),
                "last_tick_ns": int(recording.ticks_ns[episode.stop - 1]),
                "frames": episode.stop - episode.start,
                "task": episode.task,
                "success": episode.success,
            }
            for index, recording in enumerate(recordings)
            for episode in recording.episodes
        ],
    }
