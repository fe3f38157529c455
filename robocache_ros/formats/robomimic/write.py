"""Write robomimic datasets: one HDF5 file with a group per episode."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.extras import need
from robocache_ros.formats import write
from robocache_ros.formats.dataset import Episode, ExportedDataset
from robocache_ros.formats.robomimic.schema import DATA, FILE, GROUPS, OWN, PROVENANCE
from robocache_ros.formats.write import RAW, FileTask, MediaArray, WrittenByTasks, arrays_bytes, row_bytes
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.paths import AnyPath

# HDF5 files that survive a full disk: h5py cannot close a file whose writes fail, and crashes when Python exits.


LIBVER = ("earliest", "v110")  # the same bytes with every version of HDF5


@contextmanager
def new_hdf5(path: Path) -> Iterator[tuple[Any, Callable[[], None]]]:
    """Open a new file for writing; yield an `h5py.File`, and a function that raises the first error of the disk.

    The error is raised at the end too. Call the function now and then, to stop soon after the disk is full.

    Errors:
        OSError: the file cannot be written.
    """
    with _KeepsErrors(path) as disk:
        with need("h5py", "hdf5").File(disk, "w", libver=LIBVER) as file:
            yield file, disk.check
        disk.check()


class _KeepsErrors(io.FileIO):
    """A file that keeps the first error of a write, and ignores what is written afterwards."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the error, if there is one."""
        if self._error:
            raise self._error

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        with self._kept():
            while len(rest):
                rest = rest[super().write(rest) :]
        return memoryview(data).nbytes

    def truncate(self, size: int | None = None) -> int:
        with self._kept():
            super().truncate(size)
        return self.tell() if size is None else size

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._error = self._error or OSError(error.errno, error.strerror, str(self.name))


GYM_TYPE = 2  # of robomimic's environments: the one without a simulator of its own
VALIDATION_SHARE = 0.1
MIN_RANGE = 1e-4  # a column of actions with a smaller range is only shifted, as by robomimic's own normalisation


class RobomimicFormat(WrittenByTasks):
    """robomimic: `data/demo_<i>/obs/<stream>`, `actions` in [-1, 1], and the actions as recorded."""

    name = "robomimic"
    title = "robomimic (HDF5)"
    entry = FILE
    images = RAW

    def check(self, spec: FusionSpec, options: DatasetOptions) -> None:
        """Accept every spec."""
        need("h5py", "hdf5")

    def tasks(self, dataset: ExportedDataset) -> list[FileTask]:
        """Return the task that writes the file."""
        of_row = row_bytes(dataset, dict.fromkeys(dataset.pictures, "raw")) + arrays_bytes(dataset)
        return [FileTask(self.entry, dataset.frames * of_row, _write_file)]


def _write_file(dataset: ExportedDataset, folder: Path) -> None:
    with new_hdf5(folder / ROBOMIMIC.entry) as (file, check_disk):
        _write_data(dataset, file.create_group(DATA), check_disk)
        for name, episodes in _filter_keys(dataset).items():
            file[f"mask/{name}"] = np.array([f"demo_{index}" for index in episodes], "S")
        _write_json(file, PROVENANCE, dataset.provenance)


def validation_split(recordings: Sequence[AnyPath]) -> dict[str, list[int]]:
    """Return the episodes of the masks train and valid, given the recording of each episode.

    A tenth of the recordings, evenly spaced, and at least one. With one recording: of its episodes. A single episode is
    for training.
    """
    distinct = list(dict.fromkeys(recordings))
    units: list[Any] = [distinct.index(r) for r in recordings] if len(distinct) > 1 else list(range(len(recordings)))
    count = max(units) + 1
    if count == 1:
        return {"train": list(range(len(recordings)))}
    number = max(1, round(VALIDATION_SHARE * count))
    held_out = {(2 * k + 1) * count // (2 * number) for k in range(number)}
    split: dict[str, list[int]] = {"train": [], "valid": []}
    for episode, unit in enumerate(units):
        split["valid" if unit in held_out else "train"].append(episode)
    return split


def _filter_keys(dataset: ExportedDataset) -> dict[str, list[int]]:
    """Return the episodes of each mask: train, valid, and with several tasks task_<index>."""
    keys = validation_split([episode.recording for episode in dataset.episodes])
    if len(dataset.tasks) > 1:
        for episode in dataset.episodes:
            keys.setdefault(f"task_{episode.task_index}", []).append(episode.index)
    return keys


def action_scaling(dataset: ExportedDataset) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return scale and offset, (A,) each: action = scale * actions + offset, with `actions` from -1 to 1."""
    width = sum(stream.width for stream in dataset.actions)
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    for episode in dataset.episodes:
        has, action = _has_action(dataset, episode), episode.action
        low = np.fmin(low, np.fmin.reduce(np.where(has, action, np.inf)))  # fmin and fmax ignore NaN
        high = np.fmax(high, np.fmax.reduce(np.where(has, action, -np.inf)))
    low, high = np.where(low > high, 0, (low, high))  # a column without any value
    return np.where(high - low < MIN_RANGE, 1.0, (high - low) / 2), (high + low) / 2


def _has_action(dataset: ExportedDataset, episode: Episode) -> NDArray[np.bool_]:
    """(T, A) whether an action has a value; not everywhere if the `on_invalid` of its stream is mask."""
    columns = [np.repeat(episode.has(s.name)[:, None], s.width, axis=1) for s in dataset.actions]
    return np.concatenate([np.zeros((episode.length, 0), bool), *columns], axis=1)


def _write_data(dataset: ExportedDataset, data: Any, check_disk: Callable[[], None]) -> None:
    scale, offset = action_scaling(dataset)
    env = {"env_name": dataset.options.robot_type, "type": GYM_TYPE, "env_kwargs": {}}
    data.attrs["env_args"] = json.dumps(env)
    data.attrs["total"] = dataset.frames
    data.attrs["rate_hz"] = dataset.rate_hz
    data.attrs["action_scale"], data.attrs["action_offset"] = scale, offset
    _write_names(data, dataset)
    for episode in dataset.episodes:
        demo = data.create_group(f"demo_{episode.index}")
        demo.attrs["num_samples"] = episode.length
        demo.attrs["ep_meta"] = json.dumps({"lang": episode.task})
        _write_transitions(demo, dataset, episode, scale, offset)
        _write_observations(demo, dataset, episode)
        for column in write.tick_columns(dataset):
            demo[f"{OWN}/{column.name}"] = column.read(episode)
        check_disk()


def _write_names(data: Any, dataset: ExportedDataset) -> None:
    """Write the meaning of columns as attributes, which are JSON lists."""
    data.attrs["action_names"] = json.dumps([f"{s.name}.{c}" for s in dataset.actions for c in s.components])
    data.attrs["streams"] = json.dumps([stream.name for stream in dataset.spec.streams])


def _write_transitions(
    demo: Any, dataset: ExportedDataset, episode: Episode, scale: NDArray[np.float64], offset: NDArray[np.float64]
) -> None:
    scaled = np.clip((episode.action - offset) / scale, -1, 1)
    scaled = np.where(_has_action(dataset, episode), scaled, 0)
    demo["actions"] = scaled.astype(np.float32)
    for stream in dataset.actions:
        demo[f"{GROUPS['action']}/{stream.name}"] = episode.vector(stream.name)
    demo["rewards"] = episode.rewards
    demo["dones"] = (np.arange(episode.length) == episode.length - 1).astype(np.int64)
    demo["states"] = np.zeros((episode.length, 0), np.float32)  # of a simulator


def _write_observations(demo: Any, dataset: ExportedDataset, episode: Episode) -> None:
    """Write obs, and next_obs: one tick later, with the last tick repeated. The images of next_obs take no space."""
    obs, next_obs = demo.create_group("obs"), demo.create_group("next_obs")
    following = np.minimum(np.arange(1, episode.length + 1), episode.length - 1)
    for vector in write.vectors(dataset, "observation"):
        values = vector.read(episode)
        obs[vector.name], next_obs[vector.name] = values, values[following]
    for media in write.media(dataset):
        _write_media(obs, media, episode)
        _write_next(next_obs, media.name, obs[media.name])


def _write_media(group: Any, media: MediaArray, episode: Episode) -> None:
    """Write images as they are, as robomimic does; voxels and depth, which are often sparse, compressed row by row."""
    shape = (episode.length, *media.shape)
    compressed = {"chunks": (1, *media.shape), "compression": "gzip", "compression_opts": 1, "shuffle": True}
    plain = media.is_image and media.dtype == "uint8"
    stored = group.create_dataset(media.name, shape, media.dtype, **({} if plain else compressed))
    for start, stop, value in media.runs(episode):
        for row in range(start, stop):
            stored[row] = 0 if value is None else value


def _write_next(group: Any, name: str, source: Any) -> None:
    """Write the rows 1, 2, … of a dataset of the same file, and its last row again, as a virtual dataset."""
    h5py = need("h5py", "hdf5")
    rows, *shape = source.shape
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_obj_track_times(False)  # `create_virtual_dataset` would store the time
    for start, origin, count in ((0, 1, rows - 1), (rows - 1, rows - 1, 1)):
        if count:
            target, stored = source.id.get_space(), source.id.get_space()
            target.select_hyperslab((start, *[0] * len(shape)), (count, *shape))
            stored.select_hyperslab((origin, *[0] * len(shape)), (count, *shape))
            properties.set_virtual(target, b".", source.name.encode(), stored)
    h5py.h5d.create(group.id, name.encode(), source.id.get_type(), source.id.get_space(), properties)


def _write_json(file: Any, name: str, value: dict[str, Any]) -> None:
    """Write a JSON text of any length; an attribute has 64 KB at most."""
    text = json.dumps(value).encode()
    file[name] = np.array(text, f"S{len(text)}")


ROBOMIMIC = RobomimicFormat()
