"""Zarr datasets in the layout of Diffusion Policy's ReplayBuffer (https://github.com/real-stanford/diffusion_policy)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats import write as stream_arrays
from robocache_ros.formats.dataset import ExportedDataset
from robocache_ros.formats.diffusion_policy.schema import ACTION, FOLDER, REWARD
from robocache_ros.formats.diffusion_policy.zarr import ZarrArray, write_group
from robocache_ros.formats.schema import BY_STREAM
from robocache_ros.formats.write import RAW, FileTask, VectorArray, WrittenByTasks, group_tasks, row_bytes
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions


class DiffusionPolicyFormat(WrittenByTasks):
    """Diffusion Policy's ReplayBuffer: `data/<stream>`, `data/action`, `meta/episode_ends`."""

    name = "diffusion_policy"
    title = "Diffusion Policy ReplayBuffer (Zarr format 2)"
    entry = FOLDER
    images = RAW

    def check(self, spec: FusionSpec, options: DatasetOptions) -> None:
        """Refuse an observation with the name of the array of actions or rewards."""
        for name in (ACTION, REWARD):
            if any(stream.name == name and stream.role == "observation" for stream in spec.streams):
                raise RoboCacheError(
                    f"streams.{name}: {self.name} stores the {name} under this name; rename the stream, or give it "
                    f"role {name}"
                )

    def tasks(self, dataset: ExportedDataset) -> list[FileTask]:
        """Return the tasks: the arrays of numbers, and each array of images or voxels in groups of episodes."""
        found = [FileTask("data", dataset.frames * row_bytes(dataset, {}), _write_vectors)]
        for media in stream_arrays.media(dataset):
            write = partial(_write_media, name=media.name)
            found += group_tasks(dataset, media.row_bytes, write, f"data/{media.name}, ")
        return found

    def finish(self, dataset: ExportedDataset, folder: Path, results: Sequence[Any]) -> None:
        """Write what is known of the arrays and of each episode; the attributes of the dataset are written last."""
        root = folder / self.entry
        write_group(root / "data", {"columns": _columns(dataset), "rate_hz": dataset.rate_hz})
        _write_meta(dataset, root / "meta")
        write_group(root, {"robocache": dataset.provenance})


def _write_vectors(dataset: ExportedDataset, folder: Path) -> None:
    """Write the arrays of numbers."""
    data = folder / DIFFUSION_POLICY.entry / "data"
    for vector in _vectors(dataset):
        with ZarrArray(data / vector.name, dataset.frames, vector.shape, vector.dtype) as array:
            for episode in dataset.episodes:
                array.append(vector.read(episode))


def _write_media(dataset: ExportedDataset, folder: Path, name: str, group: range) -> None:
    """Write the rows of some episodes into an array of images or voxels, whose chunks have one row each."""
    (media,) = (media for media in stream_arrays.media(dataset) if media.name == name)
    data, first = folder / DIFFUSION_POLICY.entry / "data", dataset.episodes.first_rows[group.start]
    with ZarrArray(data / name, dataset.frames, media.shape, media.dtype, chunk_rows=1, first_row=first) as array:
        for episode in map(dataset.episodes.__getitem__, group):
            for start, stop, value in media.runs(episode):
                array.repeat(value, stop - start)


def _write_meta(dataset: ExportedDataset, folder: Path) -> None:
    """Write what is known of each episode. success: 1 yes, 0 no, -1 not known."""
    write_group(folder, {"tasks": list(dataset.tasks)})
    episodes = list(dataset.episodes)
    columns = {
        "episode_ends": np.cumsum([episode.length for episode in episodes]),
        "task_index": np.array([episode.task_index for episode in episodes]),
        "success": np.array([-1 if episode.success is None else int(episode.success) for episode in episodes]),
    }
    for name, values in columns.items():
        with ZarrArray(folder / name, len(episodes), (), "int64") as array:
            array.append(values)


def _vectors(dataset: ExportedDataset) -> list[VectorArray]:
    """Return all arrays of numbers: observations by stream, the actions side by side, and the columns of each tick."""
    found = stream_arrays.vectors(dataset, "observation")
    if width := sum(stream.width for stream in dataset.actions):
        found.append(VectorArray(ACTION, (width,), "float32", lambda episode: episode.action))
    if any(stream.role == REWARD for stream in dataset.spec.vectors):
        found.append(VectorArray(REWARD, (), "float32", lambda episode: episode.rewards))
    ticks = stream_arrays.tick_columns(dataset)
    return found + [VectorArray(f"robocache.{t.name}", t.shape, t.dtype, t.read) for t in ticks]


def _columns(dataset: ExportedDataset) -> dict[str, Any]:
    """Return the meaning of the columns of arrays by name."""
    names = {s.name: list(s.components) for s in dataset.spec.vectors if s.role == "observation"}
    streams = [stream.name for stream in dataset.spec.streams]
    per_stream = {f"robocache.{name}": streams for name in BY_STREAM}
    return {**names, ACTION: [f"{s.name}.{c}" for s in dataset.actions for c in s.components], **per_stream}


DIFFUSION_POLICY = DiffusionPolicyFormat()
