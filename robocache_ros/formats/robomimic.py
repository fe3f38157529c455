"""robomimic datasets: one HDF5 file with a group per demonstration, written, read and checked."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.file_limits import check_hdf5
from robocache_ros.formats import write
from robocache_ros.formats.check import ExportedRows, Findings, FormatCheck, TickRows, check_finite, check_ticks
from robocache_ros.formats.columns import ArrayRows, ExportColumns, export_columns, read_marks
from robocache_ros.formats.dataset import Episode, ExportedDataset
from robocache_ros.formats.read import (
    MAX_EPISODES,
    MAX_STEPS,
    MAX_VECTOR_BYTES,
    TICK_COLUMNS,
    DatasetError,
    SourceEpisode,
    Stream,
    check_image_bytes,
    known_names,
    nominal_span,
    nominal_stamps,
    numbers,
    parse_object,
    refusing,
)
from robocache_ros.formats.write import RAW, FileTask, MediaArray, WrittenByTasks, row_bytes
from robocache_ros.processes import cached_until_fork
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.paths import AnyPath, as_path
from robocache_ros.untrusted_files import DatasetFile, Hdf5File, Hdf5Group, file_below, given_file, open_file, open_hdf5

FILE = "dataset.hdf5"  # in a folder
DATA = "data"  # the group of the demonstrations
OWN = "robocache"  # the group of what this package adds, in the file and in each demonstration
PROVENANCE = f"{OWN}/provenance"  # a text
GROUPS = {"observation": "obs", "action": "action_dict"}  # of the streams of a role, as recorded; `actions` are scaled


# HDF5 files that survive a full disk: h5py cannot close a file whose writes fail, and crashes when Python exits.


LIBVER = ("earliest", "v110")  # the same bytes with every version of HDF5


@contextmanager
def new_hdf5(path: Path) -> Iterator[tuple[Any, Callable[[], None]]]:
    """Open a new file for writing; yield an `h5py.File`, and a function that raises the first error of the disk.

    The error is raised at the end too. Call the function now and then, to stop soon after the disk is full.
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


class _RobomimicFormat(WrittenByTasks):
    """robomimic: `data/demo_<i>/obs/<stream>`, `actions` in [-1, 1], and the actions as recorded."""

    name = "robomimic"
    title = "robomimic (HDF5)"
    entry = FILE
    images = RAW

    def check(self, spec: FusionSpec, options: DatasetOptions) -> None:
        need("h5py", "hdf5")

    def tasks(self, dataset: ExportedDataset) -> list[FileTask]:
        of_row = row_bytes(dataset, dict.fromkeys(dataset.pictures, "raw"), arrays=True)
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
    data.attrs["action_names"] = json.dumps([f"{s.name}.{c}" for s in dataset.actions for c in s.components])
    data.attrs["streams"] = json.dumps([stream.name for stream in dataset.spec.streams])
    for episode in dataset.episodes:
        demo = data.create_group(f"demo_{episode.index}")
        demo.attrs["num_samples"] = episode.length
        demo.attrs["ep_meta"] = json.dumps({"lang": episode.task})
        _write_transitions(demo, dataset, episode, scale, offset)
        _write_observations(demo, dataset, episode)
        for column in write.tick_columns(dataset):
            demo[f"{OWN}/{column.name}"] = column.read(episode)
        check_disk()


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


ROBOMIMIC = _RobomimicFormat()


RATE_HZ = 20.0  # of robosuite, where the file does not state `control_freq`
OPEN_FILES = 8
# What h5py raises where an object is damaged, missing or of another kind.
_refusing = partial(refusing, what="damaged, or not robomimic's")
MODALITIES = ("low_dim", "image")


class RobomimicDemos:
    """The demonstrations of a file.

    Args:
        path: the file, or the folder of an export.
        obs_modality: low_dim: vectors; image: images too.
        obs_keys: the observations to read; None: all of the modality, in alphabetical order.
        mask: a filter key of the file, such as train; None: all demonstrations.
        rate_hz: steps per second; None: `control_freq` of the file's env_args, else 20. Exports of this project have
            measured stamps and need none.
    """

    def __init__(
        self,
        path: str | AnyPath,
        *,
        obs_modality: str = "low_dim",
        obs_keys: Sequence[str] | None = None,
        mask: str | None = None,
        rate_hz: float | None = None,
    ) -> None:
        if obs_modality not in MODALITIES:
            raise DatasetError(
                f"obs_modality: {printable(obs_modality, 40)} is not low_dim or image; choose one of them"
            )
        given = as_path(path)
        self.path = file_below(given, FILE) if given.is_dir() else given_file(given)  # that of an export
        self._images, self._keys = obs_modality == "image", obs_keys
        self.name, self.files = self.path.stem, (self.path,)
        file = _file(self.path, os.getpid())
        with _refusing(printable(self.path)):
            self._demos = _demos(file, mask)
            env = parse_object(file["data"].attrs.get("env_args", "{}"), f"{printable(self.path)}: env_args")
            stored = (
                env["env_kwargs"].get("control_freq", RATE_HZ) if isinstance(env.get("env_kwargs"), dict) else RATE_HZ
            )
            self._rate_hz = float(rate_hz if rate_hz is not None else stored)
            self.export: ExportColumns | None = None
            if PROVENANCE in file:
                where = f"{printable(self.path)}: provenance"
                self.export = export_columns(parse_object(_all(file[PROVENANCE], where), where), where)

    def __len__(self) -> int:
        return len(self._demos)

    def read(self, index: int) -> SourceEpisode:
        """Return a demonstration. Images are read when they are asked for."""
        name = self._demos[index]
        where = f"{printable(self.path)}: {printable(name, 40)}"
        with _refusing(where):
            demo = _file(self.path, os.getpid())[f"data/{name}"]
            streams = self._exported(demo, where) if self.export else self._nominal(demo, where)
            meta = parse_object(demo.attrs.get("ep_meta", "{}"), f"{where}: ep_meta")
            return SourceEpisode(streams, str(meta.get("lang", "")), self.name, where, finite=not self.export)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of a demonstration."""
        name = self._demos[index]
        with _refusing(f"{printable(self.path)}: {printable(name, 40)}"):
            demo = _file(self.path, os.getpid())[f"data/{name}"]
            if self.export:
                ticks = demo[f"{OWN}/tick_ns"]
                return int(ticks[0]), int(ticks[-1])
            return nominal_span(len(demo["actions"]), self._rate_hz)

    def _nominal(self, demo: Any, where: str) -> dict[str, Stream]:
        streams: dict[str, Stream] = {}
        if not 0 < len(demo["actions"]) <= MAX_STEPS:
            raise DatasetError(f"{where}: {len(demo['actions']):,} steps; 1 to {MAX_STEPS:,} are read")
        stamps = nominal_stamps(len(demo["actions"]), self._rate_hz)
        for key, stored in self._observations(demo, where):
            if stored.ndim == 4:
                name = f"vision/{key.removesuffix('_image')}"
                streams[name] = Stream(name, stamps, _Frames(self.path, stored.name, len(stored)), False)
            else:
                table = _numbers(stored, f"{where}: {key}")
                align = "slerp" if key.endswith("quat") and table.shape[1] == 4 else ""
                streams[key] = Stream(key, stamps, table, False, align=align)
        for name, role in (("actions", "action"), ("rewards", "reward")):
            if name in demo:
                streams[name] = Stream(name, stamps, _numbers(demo[name], f"{where}: {name}"), False, role)
        return streams

    def _exported(self, demo: Any, where: str) -> dict[str, Stream]:
        columns = self.export
        assert columns is not None
        known_names("obs_keys", self._keys or (), columns.names)
        ticks, valid, age_ns = (_all(demo[f"{OWN}/{name}"], where) for name in ("tick_ns", "valid", "age_ns"))
        marks = read_marks(columns, valid, age_ns, where)
        found: dict[str, Any] = {}
        for name, about in columns.streams.items():
            group = GROUPS.get(about.role, "obs")
            if name not in demo.get(group, {}) or (
                self._keys is not None and group == "obs" and name not in self._keys
            ):
                continue
            stored = demo[f"{group}/{name}"]
            if about.kind == "vector":
                found[name] = _numbers(stored, f"{where}: {name}")
            elif not (about.kind == "image" and _is_image(stored)):
                found[name] = ArrayRows(len(stored), partial(_array, self.path, stored.name), f"{where}: {name}")
            elif self._images:
                found[name] = _Frames(self.path, stored.name, len(stored))
        return columns.episode_streams(ticks, marks, found, _all(demo["rewards"], where), where)

    def _observations(self, demo: Any, where: str) -> list[tuple[str, Any]]:
        obs = demo["obs"]
        if self._keys is not None:
            missing = [key for key in self._keys if key not in obs]
            if missing:
                raise DatasetError(
                    f"{where}: has no observation {printable(missing[0], 40)}; choose from obs of the file"
                )
            return [(key, obs[key]) for key in self._keys]
        stored = ((key, obs[key]) for key in sorted(obs))
        return [(key, each) for key, each in stored if each.ndim <= 2 or (self._images and _is_image(each))]


@dataclass(frozen=True)
class _Frames:
    path: DatasetFile
    name: str
    count: int

    def __len__(self) -> int:
        return self.count

    def frames(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        first, last = int(rows[0]), int(rows[-1])
        where = printable(self.path)
        with _refusing(f"{where}: {printable(self.name, 40)}"):
            stored = _file(self.path, os.getpid())[self.name]
            check_image_bytes(last + 1 - first, stored.shape[1:], where)
            check_hdf5(stored, f"{where}: {printable(self.name, 60)}", last + 1 - first)
            read: NDArray[np.uint8] = stored[first : last + 1]
        return read[rows - first]


def _array(path: DatasetFile, name: str, row: int) -> NDArray[Any]:
    stored = _file(path, os.getpid())[name]
    check_hdf5(stored, f"{printable(path)}: {printable(name, 60)}", 1)
    array: NDArray[Any] = stored[row]
    return array


def _all(stored: Any, where: str) -> Any:
    """Return all values of a dataset of HDF5."""
    where = f"{where}: {printable(stored.name.rpartition('/')[2], 40)}"
    if stored.nbytes > MAX_VECTOR_BYTES:
        raise DatasetError(f"{where}: {stored.nbytes:,} bytes; at most {MAX_VECTOR_BYTES:,} are read; check the file")
    check_hdf5(stored, where)
    return stored[()]


def _numbers(stored: Any, where: str) -> NDArray[np.float32]:
    if stored.dtype.hasobject:
        raise DatasetError(f"{where}: texts, not numbers; leave it out of obs_keys")
    return numbers(_all(stored, where.rpartition(": ")[0]), where)


def _is_image(stored: Any) -> bool:
    return bool(stored.ndim == 4 and stored.shape[3] == 3 and stored.dtype == np.uint8)


@cached_until_fork(OPEN_FILES)
def _file(path: DatasetFile, process: int) -> Hdf5File:
    return open_hdf5(path)


def _demos(file: Any, mask: str | None) -> list[str]:
    data = file["data"]
    if len(data) > MAX_EPISODES:
        raise DatasetError(f"{printable(file.filename)}: more than {MAX_EPISODES:,} demonstrations; split the file")
    if mask is None:
        names = [name for name in data if name.startswith("demo_")]
    elif f"mask/{mask}" in file:
        names = _mask(file[f"mask/{mask}"], len(data), f"{printable(file.filename)}: mask/{printable(mask, 40)}")
    else:
        known = ", ".join(file["mask"]) if "mask" in file else "none"
        raise DatasetError(
            f"mask: no {printable(mask, 40)} in {printable(file.filename, 60)}; there are: {printable(known)}"
        )
    if missing := [name for name in names if name not in data]:
        raise DatasetError(f"{printable(file.filename)}: has no {printable(missing[0], 40)}; get the file again")
    return sorted(names, key=lambda name: (int(name[5:]) if name[5:].isdecimal() else 0, name))


def _mask(stored: Any, demos: int, where: str) -> list[str]:
    """Return the names in a filter key, at most one for each demonstration."""
    if len(stored) > demos:
        raise DatasetError(f"{where}: {len(stored):,} names for {demos:,} demonstrations; check the file")
    check_hdf5(stored, where)
    return [bytes(stored[row]).decode() for row in range(len(stored))]


MAGIC = b"\x89HDF\r\n\x1a\n"
ARRAY_BYTES = 256 << 20  # of an array that is read at once
MAX_DEPTH = 4  # of the groups that are looked into
ACTION_LIMIT = 1 + 1e-6  # of the absolute value; robomimic's policies cannot predict more


def _recognizes(dataset: Path) -> bool:
    """Return whether this is an HDF5 file, or a folder with dataset.hdf5."""
    path = dataset / FILE if dataset.is_dir() else dataset
    if not path.is_file():
        return False
    with open_file(given_file(path)) as file:
        return path.name == FILE or file.read(len(MAGIC)) == MAGIC


def _check(findings: Findings) -> None:
    """Reads a robomimic HDF5 file."""
    path = findings.dataset / FILE if findings.dataset.is_dir() else findings.dataset
    given = file_below(findings.dataset, FILE) if findings.dataset.is_dir() else given_file(findings.dataset)
    with open_hdf5(given, path.name) as file:
        if not isinstance(file.get("data"), Hdf5Group) or not len(file["data"]):
            raise RoboCacheError(f"{path.name}: has no group data with demonstrations")
        _check_members(file)
        if (provenance := file.get(PROVENANCE)) is not None:
            check_hdf5(provenance, PROVENANCE)
        demos = _demo_names(findings, file["data"])
        own = _own_data(findings, file)
        for name in demos:
            _check_demo(findings, file["data"], name)
            if own is not None and name.removeprefix("demo_").isdigit():
                with findings.reading(f"data/{name}"):
                    own.check_demo(file["data"][name], f"data/{name}", int(name.removeprefix("demo_")))
        _check_keys(findings, file["data"], demos)
        _check_attributes(findings, file["data"], demos)
        named = _check_masks(findings, file, demos)
        if own is not None:
            with findings.reading("data"):
                own.check_dataset(named, demos)
    if not findings.decode:
        findings.skip("values of images: --decode reads them")


def _demo_names(findings: Findings, data: Any) -> list[str]:
    demos = sorted(data, key=lambda name: (len(name), name))
    wanted = [f"demo_{index}" for index in range(len(demos))]
    findings.check(demos == wanted, "data", f"its groups are not demo_0 to demo_{len(demos) - 1}")
    findings.counted["episodes"] += len(demos)
    return [name for name in demos if name.startswith("demo_")]


def _check_demo(findings: Findings, data: Any, name: str) -> None:
    where = f"data/{name}"
    demo = data[name]
    length = demo.attrs.get("num_samples")
    if not isinstance(length, int | np.integer) or length < 1:
        findings.add(where, f"num_samples is {printable(length, 20)}; it must be a positive integer")
        return
    findings.check("actions" in demo, where, "has no actions")
    findings.check("obs" in demo, where, "has no obs")
    findings.counted["rows"] += int(length)
    for path, array in _arrays(demo):
        with findings.reading(f"{where}/{path}"):
            text = f"{array.shape[:1]} rows; num_samples is {length}"
            if not findings.check(array.shape[:1] == (length,), f"{where}/{path}", text):
                continue
            image = array.ndim == 4
            if image and not findings.decode:
                continue
            check_hdf5(array, f"{where}/{path}")
            if array.nbytes > ARRAY_BYTES:
                _check_large(findings, f"{where}/{path}", array)
                continue
            values = array[()]
            findings.counted["arrays"] += 1
            check_finite(findings, f"{where}/{path}", values)
            if path == "actions" and values.size and np.isfinite(values).all():
                most = float(np.abs(values).max())
                text = f"{most:g} is outside -1 to 1, which robomimic's policies predict"
                findings.check(most <= ACTION_LIMIT, f"{where}/{path}", text)
            if path == "robocache/tick_ns" and "rate_hz" in data.attrs:
                check_ticks(findings, f"{where}/{path}", values.reshape(-1), int(data.attrs["rate_hz"]))
            if path.startswith("next_obs/") and path.removeprefix("next_") in demo:
                obs = demo[path.removeprefix("next_")]
                check_hdf5(obs, f"{where}/{path}")
                _check_next(findings, f"{where}/{path}", values, obs)


def _check_next(findings: Findings, where: str, values: NDArray[Any], obs: Any) -> None:
    """Compare next_obs with obs of the next row."""
    if not findings.check(values.shape == obs.shape, where, f"has the shape {values.shape}; obs has {obs.shape}"):
        return
    found, wanted = values[:-1], obs[1:]
    off = (found != wanted) & ~((found != found) & (wanted != wanted))  # NaN is reported as such
    off = off.reshape(len(off), -1).any(axis=1)
    if off.any():
        text = f"in {int(off.sum())} rows, the first is row {off.argmax()}"
        findings.add(where, f"is not obs of the next row {text}")


def _check_large(findings: Findings, where: str, array: Any) -> None:
    """Read an array in parts of a limited size; check that its numbers are finite."""
    step = ARRAY_BYTES // (array.nbytes // len(array))
    if step == 0:
        findings.skip(f"{where}: a row has more than {ARRAY_BYTES >> 20} MiB")
        return
    for start in range(0, len(array), step):
        check_finite(findings, f"{where}, from row {start}", array[start : start + step])
    findings.counted["arrays"] += 1


def _check_keys(findings: Findings, data: Any, demos: list[str]) -> None:
    """Report observations that some demonstrations lack, or that have several shapes."""
    for group in ("obs", "next_obs"):
        shapes: dict[str, dict[str, Any]] = {}
        having = [name for name in demos if group in data[name]]
        for name in having:
            for key in data[name][group]:
                array = data[name][group][key]
                shapes.setdefault(key, {})[name] = (array.shape[1:], str(array.dtype))
        for key, of_demos in shapes.items():
            lacking = [name for name in having if name not in of_demos]
            text = f"is in {next(iter(of_demos))} and not in {', '.join(lacking[:3])}"
            findings.check(not lacking, f"{group}/{key}", text)
            findings.check(
                len(set(of_demos.values())) == 1, f"{group}/{key}", "has another shape or type in some demos"
            )


def _check_attributes(findings: Findings, data: Any, demos: list[str]) -> None:
    total = sum(int(data[name].attrs.get("num_samples", 0)) for name in demos)
    stated = data.attrs.get("total")
    findings.check(stated == total, "data", f"total is {printable(stated, 20)}; the demonstrations have {total} rows")
    with findings.reading("data"):
        arguments = json.loads(data.attrs.get("env_args", "null"))
        lacking = [key for key in ("env_name", "type", "env_kwargs") if key not in (arguments or {})]
        findings.check(not lacking, "data", f"env_args has no {', '.join(lacking)}")


def _check_masks(findings: Findings, file: Any, demos: list[str]) -> dict[str, set[str]]:
    """Return the demonstrations that each mask names; without masks nothing."""
    named: dict[str, set[str]] = {}
    masks = file.get("mask")
    if masks is None:
        findings.skip("mask: there is none, so robomimic trains on all demonstrations")
        return named
    for name in masks:
        stored = masks[name]
        if not findings.check(len(stored) <= len(demos), f"mask/{name}", f"{len(stored):,} names; fewer exist"):
            continue
        check_hdf5(stored, f"mask/{name}")
        named[name] = {bytes(stored[row]).decode("utf-8", "replace") for row in range(len(stored))}
        unknown = named[name] - set(demos)
        findings.check(
            not unknown, f"mask/{name}", f"names {printable(min(unknown, default=''), 30)}, which is missing"
        )
    both = named.get("train", set()) & named.get("valid", set())
    findings.check(not both, "mask", f"{len(both)} demonstrations are in train and in valid")
    return named


class _OwnData:
    """Checks what this package writes besides the arrays that robomimic reads."""

    def __init__(self, findings: Findings, data: Any, exported: ExportedRows) -> None:
        self._findings, self._exported, self._attributes = findings, exported, dict(data.attrs)
        width = sum(stream.width for stream in exported.of_role("action"))
        self._low, self._high = np.full(width, np.inf), np.full(width, -np.inf)  # of the actions

    def check_demo(self, demo: Any, where: str, number: int) -> None:
        if any(a.nbytes > ARRAY_BYTES for path, a in _arrays(demo) if a.ndim < 4 and "next_obs" not in path):
            self._findings.skip(f"{where}: an array has more than {ARRAY_BYTES >> 20} MiB, so arrays are not compared")
            return
        exported, spec = self._exported, self._exported.spec
        if lacking := [name for name in TICK_COLUMNS if f"robocache/{name}" not in demo]:
            self._findings.add(where, f"has no robocache/{lacking[0]}")
            return
        columns = {name: demo[f"{OWN}/{name}"][()] for name in exported.columns if f"{OWN}/{name}" in demo}
        values = {}
        for stream in spec.vectors:
            group = GROUPS.get(stream.role)
            if group is None:
                continue
            if f"{group}/{stream.name}" not in demo:
                self._findings.add(where, f"has no {group}/{stream.name}, which is a stream of {PROVENANCE}")
                continue
            array = demo[f"{group}/{stream.name}"]
            text = f"rows of {list(array.shape[1:])}; the stream has {list(stream.shape)}"
            if self._findings.check(array.shape[1:] == stream.shape, f"{where}/{group}/{stream.name}", text):
                values[stream.name] = array[()]
        different = ", ".join(sorted(set(demo["obs"]) ^ set(demo["next_obs"])))
        self._findings.check(not different, where, f"{different}: is in one of obs and next_obs only")
        repeated = self._repeated(demo, len(columns["tick_ns"]))
        rows = exported.tick_rows(columns, values, repeated=repeated, rewards=demo["rewards"][()])
        if exported.check_episode(where, number, rows):
            self._check_transitions(demo, where, number, rows, values)

    def _check_transitions(
        self, demo: Any, where: str, number: int, rows: TickRows, values: dict[str, NDArray[Any]]
    ) -> None:
        exported = self._exported
        actions = exported.of_role("action")
        if actions and all(stream.name in values for stream in actions):
            table = np.concatenate([values[stream.name] for stream in actions], axis=1).astype(np.float64)
            filled = exported.filled(rows, "action")
            scale, offset = (np.asarray(self._attributes[name]) for name in ("action_scale", "action_offset"))
            if not self._findings.check(bool((scale != 0).all()), "data", "action_scale has a 0"):
                return
            wanted = np.where(filled, np.clip((table - offset) / scale, -1, 1), 0)
            self._low = np.fmin(self._low, np.where(filled, table, np.inf).min(axis=0, initial=np.inf))
            self._high = np.fmax(self._high, np.where(filled, table, -np.inf).max(axis=0, initial=-np.inf))
            self._compare(f"{where}/actions", demo["actions"][()], wanted, "action_dict, scaled, has")
        last = np.arange(len(rows.ticks_ns)) == len(rows.ticks_ns) - 1
        self._compare(f"{where}/dones", demo["dones"][()][:, None], last[:, None], "only the last row has 1, it is")
        for name, array in demo["next_obs"].items() if "next_obs" in demo else ():
            if array.ndim < 4 and name in demo["obs"] and len(array):
                same = np.array_equal(array[-1], demo["obs"][name][-1], equal_nan=True)
                self._findings.check(same, f"{where}/next_obs/{name}", "the last row is not the last one of obs")
        if number < len(exported.episodes):
            task = json.loads(demo.attrs["ep_meta"])["lang"]
            exported.check_value(where, "lang in ep_meta", task, exported.episodes[number].task)

    def _compare(self, where: str, found: NDArray[Any], wanted: NDArray[Any], what: str) -> None:
        text = f"has the shape {list(found.shape)}; it must be {list(wanted.shape)}"
        if self._findings.check(found.shape == wanted.shape, where, text):
            off = ~(np.abs(found.astype(np.float64) - wanted) <= 1e-6)  # actions are float32 from -1 to 1
            if off.any():
                row, column = np.argwhere(off)[0].tolist()
                text = f"wrong in {int(off.any(axis=1).sum())} rows; in row {row} value {column} is"
                self._findings.add(where, f"{text} {found[row, column]:g}; {what} {float(wanted[row, column]):g}")

    def _repeated(self, demo: Any, rows: int) -> dict[str, NDArray[np.bool_]]:
        """Return by stream which images are those of the row before; only with `findings.decode`."""
        found = {}
        for stream in self._exported.spec.media if self._findings.decode else ():
            array = demo["obs"].get(stream.name)
            if array is not None and not isinstance(array, Hdf5Group) and len(array) == rows:
                same, last = np.zeros(rows, np.bool_), None
                for row in range(rows):
                    image = array[row]
                    same[row] = last is not None and np.array_equal(image, last, equal_nan=image.dtype.kind == "f")
                    last = image
                found[stream.name] = same
        return found

    def check_dataset(self, named: dict[str, set[str]], demos: list[str]) -> None:
        """Check what is stored once."""
        exported, attributes = self._exported, self._attributes
        exported.check_count(len(demos), "data")
        exported.check_value("data", "rate_hz", int(attributes["rate_hz"]), exported.spec.rate_hz)
        environment = json.loads(attributes["env_args"])["env_name"]
        exported.check_value("data", "env_name in env_args", environment, exported.robot)
        exported.check_names("streams", json.loads(attributes["streams"]), exported.layout.names, where="data")
        names = json.loads(attributes["action_names"])
        exported.check_names("action_names", names, exported.labels("action"), where="data")
        if len(self._low) and np.isfinite(self._low).all():
            middle = (self._high + self._low) / 2
            off = ~np.isclose(np.asarray(attributes["action_offset"]), middle, rtol=1e-6, atol=1e-9)
            text = f"action_offset of column {off.argmax()} is not the middle of the actions, {middle[off.argmax()]:g}"
            self._findings.check(not off.any(), "data", text)
        if named:
            without = sorted(set(demos) - named.get("train", set()) - named.get("valid", set()))
            text = f"{without[:1]} is in neither train nor valid"
            self._findings.check(not without or "train" not in named, "mask", text)
            tasks = exported.tasks
            for index, task in enumerate(tasks if len(tasks) > 1 else ()):
                wanted = {f"demo_{k}" for k, episode in enumerate(exported.episodes) if episode.task == task}
                off_names = sorted(wanted ^ named.get(f"task_{index}", set()))
                text = f"{off_names[:1]} is wrong in it or missing; it has the episodes of {printable(task, 40)}"
                self._findings.check(not off_names, f"mask/task_{index}", text)


def _own_data(findings: Findings, file: Any) -> _OwnData | None:
    """Return the checks of a file that this package wrote; None for others."""
    own = any("robocache" in demo for _, demo in file["data"].items() if isinstance(demo, Hdf5Group))
    provenance = file.get(PROVENANCE)
    if provenance is None:
        findings.check(not own, PROVENANCE, "is missing; without it readers do not know the streams")
        return None
    with findings.reading(PROVENANCE):
        raw = json.loads(bytes(provenance[()]))
        return _OwnData(findings, file["data"], ExportedRows(findings, PROVENANCE, raw))
    return None


def _check_members(group: Hdf5Group, depth: int = 0) -> None:
    """Refuse links and data in other files, also where no other check reads: each member is opened."""
    for name in group:
        if isinstance(member := group[name], Hdf5Group) and depth < MAX_DEPTH:
            _check_members(member, depth + 1)


def _arrays(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for key in group:
        item = group[key]
        if not isinstance(item, Hdf5Group):
            if item.ndim:
                yield f"{path}{key}", item
        elif path.count("/") < MAX_DEPTH:
            yield from _arrays(item, f"{path}{key}/")


ROBOMIMIC_CHECK = FormatCheck("robomimic", _recognizes, _check)
