"""The output of the engine for a recording, as datasets store it: what readers must return."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.engine.frames import Frames
from robocache_ros.exporter.job import ExportResult
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.layout import Layout

Rows = dict[str, NDArray]


def engine_rows(recording: Path, spec: FusionSpec) -> Rows:
    """All ticks of a recording: tick_ns, valid, age_ns, stamp_ns, and each stream by name.

    Vectors are (T, dim), windows (T, samples, dim) with `mask.<stream>` and `sample_age_ms.<stream>`, images
    (T, H, W, C) with three channels if they are 8-bit, voxels as in the frames. Without a value they are zero.
    """
    with Bag(recording) as bag:
        parts = [_rows(frames, Layout(spec)) for frames in BagRun(bag, spec).frames()]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def engine_episodes(result: ExportResult, spec: FusionSpec) -> list[Rows]:
    """The rows of each episode of an export, computed again from its recordings."""
    episodes = []
    for recording in result.recordings:
        rows = engine_rows(recording.bag, spec)
        for episode in recording.episodes:
            places = np.searchsorted(rows["tick_ns"], recording.ticks_ns[episode.start : episode.stop])
            episodes.append({name: values[places] for name, values in rows.items()})
    return episodes


def _rows(frames: Frames, layout: Layout) -> Rows:
    latency = np.array([stream.latency_ns for stream in layout.spec.streams])
    stamps = np.where(frames.valid > 0, frames.stamps_ns + latency, 0)
    rows = {"tick_ns": frames.ticks_ns, "valid": frames.valid, "age_ns": frames.age_ns, "stamp_ns": stamps}
    fused = frames.fused.numpy()
    for stream in layout.spec.vectors:
        rows[stream.name] = fused[:, layout.slots[stream.name]].reshape(len(fused), *stream.shape)
        if stream.rows:
            ages = frames.sample_age_ms[:, layout.sample_ages[stream.name]]
            rows[f"sample_age_ms.{stream.name}"], rows[f"mask.{stream.name}"] = ages, ages >= 0
    for stream in layout.spec.media:
        values = frames.media[stream.name].numpy()
        if stream.kind == "image":
            values = np.moveaxis(values, 1, -1)
            if values.dtype == np.uint8:
                values = np.broadcast_to(values, (*values.shape[:3], 3))
        rows[stream.name] = values
    return rows
