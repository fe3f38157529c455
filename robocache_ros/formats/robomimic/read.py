"""robomimic: demonstrations in one HDF5 file per task."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import printable
from robocache_ros.file_limits import check_hdf5
from robocache_ros.fork import cached_until_fork
from robocache_ros.formats.columns import ArrayRows, ExportColumns, export_columns, read_marks
from robocache_ros.formats.read import (
    MAX_EPISODES,
    MAX_STEPS,
    MAX_VECTOR_BYTES,
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
from robocache_ros.formats.robomimic.schema import FILE, GROUPS, OWN, PROVENANCE
from robocache_ros.storage.paths import AnyPath, as_path
from robocache_ros.untrusted_files import DatasetFile, Hdf5File, file_below, given_file, open_hdf5

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

    Errors:
        DatasetError: the file is missing or damaged, or has no such mask or observation.
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
        self.name = self.path.stem
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

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files by which a change of the dataset is noticed."""
        return (self.path,)

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
            return SourceEpisode(streams, str(meta.get("lang", "")), self.name, where)

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
        arrays: dict[str, Any] = {}
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
                arrays[name] = ArrayRows(len(stored), partial(_array, self.path, stored.name), f"{where}: {name}")
            elif self._images:
                found[name] = _Frames(self.path, stored.name, len(stored))
        return columns.episode_streams(ticks, marks, found, arrays, _all(demo["rewards"], where), where)

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
    """The images of a demonstration."""

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
