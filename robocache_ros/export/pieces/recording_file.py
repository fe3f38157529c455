"""Stores the result of a recording in files of its piece: all data for the report and the provenance."""

from __future__ import annotations

import base64
import json
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.bags.clocks.stamp_clock import Clock
from robocache_ros.bags.stats import Gap, TopicStats
from robocache_ros.export.episodes.episode_info import EpisodeInfo
from robocache_ros.export.exported_recording import ExportedRecording
from robocache_ros.export.report.thumbnails import Thumbnails
from robocache_ros.spec import FusionSpec

TOLD, ARRAYS = "recording.json", "recording.npz"
_OF_TOPICS = ("intervals_ms", "delays_ms")  # arrays of the topic statistics
Files = list[dict[str, Any]]  # name, size and SHA-256 of the storage files


def save(folder: Path, recording: ExportedRecording, files: Files) -> None:
    """Write the result of a recording into the folder of its piece."""
    arrays = {"ticks_ns": recording.ticks_ns, "valid": recording.valid}
    topics = []
    for number, stats in enumerate(recording.topics.values()):
        arrays.update({f"{name}_{number}": getattr(stats, name) for name in _OF_TOPICS})
        topics.append({f.name: getattr(stats, f.name) for f in fields(stats) if f.name not in _OF_TOPICS})
    told = {
        "files": files,
        "start_ns": recording.start_ns,
        "stop_ns": recording.stop_ns,
        "episodes": [asdict(episode) for episode in recording.episodes],
        "reasons": recording.reasons,
        "counters": recording.counters,
        "topics": [{**topic, "gaps": [(gap.start_ns, gap.length_ns) for gap in topic["gaps"]]} for topic in topics],
        "notes": recording.notes,
        "clocks": recording.clocks,
        "integrity": recording.integrity,
        "visibilities": recording.visibilities,
        "thumbnails": {
            name: [(tick, base64.b64encode(file).decode()) for tick, file in images]
            for name, images in recording.thumbnails.images.items()
        },
    }
    (folder / TOLD).write_text(json.dumps(told), encoding="utf-8")
    np.savez(folder / ARRAYS, **arrays)  # type: ignore[arg-type]  # no array has the name of an option of savez


def load(folder: Path, bag: Path, spec: FusionSpec, visibility: str) -> tuple[ExportedRecording, Files]:
    """Load the result that `save` stored, given the inputs from the plan of the export."""
    told = json.loads((folder / TOLD).read_text(encoding="utf-8"))
    with np.load(folder / ARRAYS, allow_pickle=False) as file:
        arrays = dict(file)
    topics = {}
    for number, raw in enumerate(told["topics"]):
        gaps = tuple(Gap(*gap) for gap in raw["gaps"])
        of_topic = {name: arrays[f"{name}_{number}"] for name in _OF_TOPICS}
        topics[raw["topic"]] = TopicStats(
            **{**raw, "clock": Clock(*raw["clock"]), "gaps": gaps, "apart": tuple(raw["apart"]), **of_topic}
        )
    thumbnails = Thumbnails(spec, told["start_ns"], told["stop_ns"])
    for name, images in told["thumbnails"].items():
        thumbnails.images[name] = [(tick, base64.b64decode(text)) for tick, text in images]
    recording = ExportedRecording(
        bag=bag,
        spec=spec,
        visibility=visibility,
        start_ns=told["start_ns"],
        stop_ns=told["stop_ns"],
        ticks_ns=arrays["ticks_ns"],
        valid=arrays["valid"],
        episodes=tuple(EpisodeInfo(**episode) for episode in told["episodes"]),
        reasons=told["reasons"],
        counters={name: Counter(counts) for name, counts in told["counters"].items()},
        topics=topics,
        notes=tuple(told["notes"]),
        clocks=told["clocks"],
        integrity=told["integrity"],
        visibilities=told["visibilities"],
        thumbnails=thumbnails,
    )
    return recording, told["files"]
