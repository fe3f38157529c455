"""The rows of the table of episodes: what a recording is, and how good its ticks are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from robocache_ros.bags.stats import TopicStats
from robocache_ros.errors import printable
from robocache_ros.export.dataset.episode import Episode
from robocache_ros.export.dataset.exported_dataset import ExportedDataset
from robocache_ros.export.pieces import recording_file
from robocache_ros.extras import need
from robocache_ros.spec import FusionSpec

SHARES = {"aligned": 1, "held": 2, "invalid": 0}  # column -> state of ticks
QUALITY = (*SHARES, "complete", "all_aligned")
DELAYS = ("median", "p95", "max")


def episode_schema(dataset: ExportedDataset) -> Any:
    """Return the pyarrow schema of the rows."""
    arrow = need("pyarrow", "export")
    names = dataset.layout.names
    by_stream = arrow.struct([(name, arrow.float64()) for name in names])
    delays = arrow.struct([(name, arrow.float64()) for name in DELAYS])
    count = arrow.struct([("stream", arrow.string()), ("counter", arrow.string()), ("count", arrow.int64())])
    time = arrow.timestamp("us", "UTC")
    return arrow.schema(
        [
            ("episode", arrow.int64()),
            ("length", arrow.int64()),
            ("recording", arrow.string()),
            ("recording_episode", arrow.int64()),
            ("recording_key", arrow.string()),
            ("task", arrow.string()),
            ("robot", arrow.string()),
            ("success", arrow.bool_()),
            ("start_ns", arrow.int64()),
            ("stop_ns", arrow.int64()),
            ("start", time),
            ("stop", time),
            ("rate_hz", arrow.int64()),
            ("quality", arrow.struct([(name, arrow.float64()) for name in QUALITY])),
            *((name, by_stream) for name in SHARES),
            ("delay_ms", arrow.struct([(name, delays) for name in names])),
            ("counters", arrow.list_(count)),
            ("append", arrow.string()),
        ]
    )


@dataclass(frozen=True)
class OfRecording:
    """What the rows of the episodes of a recording have in common.

    Attributes:
        key: a hash of its files and of the part of it that is used: the same recording has the same key.
        counters: `stream`, `counter` and `count` of each counter.
        delays: of the messages of each stream, from their stamp to their arrival; None without stamps.
    """

    key: str
    counters: list[dict[str, Any]]
    delays: dict[str, dict[str, float] | None]


def recording_of(dataset: ExportedDataset, index: int, episode: Episode) -> OfRecording:
    """Return what is known of a recording of a dataset, given its index and one of its episodes."""
    told = dataset.provenance["recordings"][index]
    loaded, _ = recording_file.load(episode.piece, episode.recording, dataset.spec, dataset.options.visibility)
    counters = [
        {"stream": stream, "counter": counter, "count": count}
        for stream, counts in sorted(told["counters"].items())
        for counter, count in sorted(counts.items())
    ]
    return OfRecording(recording_key(told), counters, _delays(dataset.spec, loaded.topics))


def recording_key(told: Mapping[str, Any]) -> str:
    """Return the key of a recording, given what the provenance of a dataset states of it."""
    decides = [told["files"], told["start_ns"], told["stop_ns"]]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def episode_row(
    dataset: ExportedDataset, episode: Episode, number: int, recording: OfRecording, append: str
) -> dict[str, Any]:
    """Return the row of an episode.

    Args:
        dataset: the dataset.
        episode: one of its episodes.
        number: of the episode in the table.
        recording: its recording.
        append: the append that it is of.
    """
    names = dataset.layout.names
    ticks, valid = episode.ticks_ns, np.array(episode.valid)
    shares = {name: (valid == state).mean(axis=0) for name, state in SHARES.items()}
    inputs = valid[:, np.flatnonzero(dataset.spec.inputs)]
    quality = {name: float(share[np.flatnonzero(dataset.spec.inputs)].mean()) for name, share in shares.items()}
    quality |= {
        "complete": float((inputs > 0).all(axis=1).mean()),
        "all_aligned": float((inputs == 1).all(axis=1).mean()),
    }
    start_ns, stop_ns = int(ticks[0]), int(ticks[-1])
    return {
        "episode": number,
        "length": episode.length,
        "recording": printable(episode.recording, 1000),
        "recording_episode": episode.number,
        "recording_key": recording.key,
        "task": episode.task,
        "robot": dataset.options.robot_type,
        "success": episode.success,
        "start_ns": start_ns,
        "stop_ns": stop_ns,
        "start": start_ns // 1000,
        "stop": stop_ns // 1000,
        "rate_hz": dataset.rate_hz,
        "quality": quality,
        **{name: dict(zip(names, share.tolist(), strict=True)) for name, share in shares.items()},
        "delay_ms": recording.delays,
        "counters": recording.counters,
        "append": append,
    }


def _delays(spec: FusionSpec, topics: Mapping[str, TopicStats]) -> dict[str, dict[str, float] | None]:
    found: dict[str, dict[str, float] | None] = {}
    for stream in spec.streams:
        topic = topics.get(stream.topic)
        delays = topic.delays_ms if topic else np.zeros(0)
        quantiles = np.quantile(delays, (0.5, 0.95, 1.0)).tolist() if len(delays) else None
        found[stream.name] = dict(zip(DELAYS, quantiles, strict=True)) if quantiles else None
    return found
