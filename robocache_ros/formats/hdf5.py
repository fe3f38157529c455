"""Trajectories of one's own in an HDF5 file: groups of streams, each with its stamps.

    /<trajectory>/<stream>/values      (K, D) numbers, or (K, H, W, 3) uint8 images
    /<trajectory>/<stream>/stamps_ns   (K,) int64, rising; or stamps_s, (K,) float64
    /<trajectory>                      its attribute `task`, if there is one, is the instruction

Arrays that are stored as one piece, without compression, are mapped into memory, which takes microseconds; h5py takes a
fraction of a millisecond.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import printable
from robocache_ros.extras import need
from robocache_ros.file_limits import check_hdf5
from robocache_ros.formats.read import (
    MAX_EPISODES,
    MAX_IMAGE_BYTES,
    MAX_VECTOR_BYTES,
    ROLES,
    DatasetError,
    SourceEpisode,
    Stream,
    known_names,
    numbers,
    refusing,
)
from robocache_ros.processes import cached_until_fork
from robocache_ros.storage.paths import AnyPath
from robocache_ros.units import NS_PER_S
from robocache_ros.untrusted_files import (
    DatasetFile,
    Hdf5File,
    Hdf5Group,
    given_file,
    hdf5_member,
    open_file,
    open_hdf5,
)

OPEN_FILES = 8
STAMPS = {b"stamps_ns": np.dtype(np.int64), b"stamps_s": np.dtype(np.float64)}


class _Stored(NamedTuple):
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int  # bytes; -1: h5py reads it


class _StoredStream(NamedTuple):
    name: str
    label: str  # for errors
    values: _Stored
    stamps: _Stored


class _Trajectory(NamedTuple):
    label: str  # for errors
    task: str
    streams: tuple[_StoredStream, ...]


class Hdf5Trajectories:
    """The trajectories of a file, by the names of their groups.

    Args:
        path: the file.
        group: that has the trajectories; empty: the file itself.
        roles: of streams by name, observation, action or reward; without one a stream is an observation, and `actions`
            and `rewards` are what they are called.

    Errors:
        DatasetError: the file is missing or damaged, or a trajectory has no streams of this form.
    """

    def __init__(self, path: str | AnyPath, *, group: str = "", roles: Mapping[str, str] | None = None) -> None:
        known_names("roles", (roles or {}).values(), ROLES)
        self.path, self._roles = given_file(path), {"actions": "action", "rewards": "reward", **(roles or {})}
        self.name, self.files, self._where = self.path.stem, (self.path,), printable(self.path)
        file, where = _file(self.path, os.getpid()), self._where
        with refusing(where, "damaged"):
            root = file[group] if group else file
            names = sorted(root)
            if len(names) > MAX_EPISODES:
                raise DatasetError(f"{where}: more than {MAX_EPISODES:,} trajectories; split the file")
            size = self.path.stat().st_size
            self._trajectories = [_trajectory(root, group, name, size, where) for name in names]
            arrays = (array for each in self._trajectories for stream in each.streams for array in stream[2:])
            streams = {stream.name for each in self._trajectories for stream in each.streams}
            known_names("roles", roles or (), sorted(streams))
            self._maps = any(array.offset >= 0 for array in arrays)

    def __len__(self) -> int:
        return len(self._trajectories)

    def read(self, index: int) -> SourceEpisode:
        """Return a trajectory."""
        label, task, stored_streams = self._trajectories[index]
        where, streams = f"{self._where}: {label}", {}
        with refusing(where, "damaged"):
            file = self._mapped_file()
            for name, stream_label, stored_values, stored_stamps in stored_streams:
                stamps, values = self._stamps(stored_stamps, file), self._array(stored_values, file)
                if values.ndim == 4:
                    name = f"vision/{name.removeprefix('vision/')}"
                    streams[name] = Stream(name, stamps, values, True)
                    continue
                values = numbers(values, f"{where}: {stream_label}")
                streams[name] = Stream(name, stamps, values, True, self._roles.get(name, "observation"))
        return SourceEpisode(streams, task, self.name, where, finite=True)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of a trajectory."""
        trajectory = self._trajectories[index]
        with refusing(f"{self._where}: {trajectory.label}", "damaged"):
            file = self._mapped_file()
            stamps = [self._stamps(stored.stamps, file) for stored in trajectory.streams]
            if not all(map(len, stamps)):
                raise DatasetError(f"{self._where}: {trajectory.label}: 0 steps; leave the episode out")
        return min(int(each[0]) for each in stamps), max(int(each[-1]) for each in stamps)

    def _mapped_file(self) -> mmap.mmap | None:
        return _mapped(self.path, os.getpid()) if self._maps else None

    def _stamps(self, stored: _Stored, file: mmap.mmap | None) -> NDArray[np.int64]:
        stamps = self._array(stored, file)
        return stamps if stamps.dtype == np.int64 else np.rint(stamps * NS_PER_S).astype(np.int64)

    def _array(self, stored: _Stored, file: mmap.mmap | None) -> NDArray[Any]:
        if stored.offset < 0:
            read: NDArray[Any] = _file(self.path, os.getpid())[stored.path][()]
            return read
        mapped: NDArray[Any] = np.ndarray(stored.shape, stored.dtype, file, stored.offset)
        return mapped


def _trajectory(parent: Hdf5Group, root: str, name: str, size: int, file: str) -> _Trajectory:
    """Find the streams of a trajectory, with h5py's low-level calls: there may be many thousands of them."""
    h5py, path = need("h5py", "datasets"), f"{root}/{name}".encode()
    where, streams = f"{file}: {printable(name, 40)}", []
    group = _group(h5py, parent.id, name.encode("utf-8", "surrogateescape"), where)
    for key in sorted(group or ()):
        stream = _group(h5py, group, key, where)
        members = set(stream or ())
        form = next((form for form in STAMPS if form in members), None)
        if form is None or b"values" not in members:
            continue
        text = key.decode("utf-8", "replace")
        here = f"{where}: {printable(text, 40)}"
        values, stamps = (_stored(h5py, stream, b"/".join((path, key)), part, size, here) for part in (b"values", form))
        if stamps.dtype != STAMPS[form] or len(stamps.shape) != 1:
            raise DatasetError(f"{here}: {form.decode()} is {stamps.dtype}, not (K,) {STAMPS[form]}; convert it")
        if len(values.shape) == 4 and values.dtype != np.uint8:
            raise DatasetError(f"{here}: images of {values.dtype}, not uint8; convert them")
        streams.append(_StoredStream(text, printable(text, 40), values, stamps))
    if not streams:
        raise DatasetError(f"{where}: no group in it has values and stamps_ns or stamps_s; see Hdf5Trajectories")
    task = h5py.Group(group).attrs["task"] if h5py.h5a.exists(group, b"task") else ""
    return _Trajectory(printable(name, 40), printable(task, 1000), tuple(streams))


def _group(h5py: Any, parent: Any, name: bytes, where: str) -> Any:
    """The group of a name; None if it is not a group."""
    found = hdf5_member(parent, name, where)
    return found if isinstance(found, h5py.h5g.GroupID) else None


def _stored(h5py: Any, group: Any, path: bytes, name: bytes, size: int, where: str) -> _Stored:
    """Return where an array is in a file of `size` bytes."""
    array = hdf5_member(group, name, where)
    if not isinstance(array, h5py.h5d.DatasetID):
        raise DatasetError(f"{where}: {printable(name.decode(), 40)} is not an array; convert it")
    found = _Stored(
        b"/".join((path, name)).decode("utf-8", "replace"), tuple(array.shape), np.dtype(array.dtype.str), -1
    )
    limit = MAX_IMAGE_BYTES if len(found.shape) == 4 else MAX_VECTOR_BYTES
    nbytes = math.prod(found.shape) * array.dtype.itemsize
    if nbytes > limit:
        raise DatasetError(f"{where}: {nbytes:,} bytes; at most {limit:,} are read; split the trajectory")
    check_hdf5(h5py.Dataset(array), where)
    if array.dtype.hasobject:
        raise DatasetError(f"{where}: {name.decode()} has texts, not numbers; convert them")
    offset, form = array.get_offset(), array.get_create_plist()  # no offset unless it is one piece, in this file
    if offset is None or form.get_nfilters():
        return found
    if offset + nbytes > size:
        raise DatasetError(f"{where}: ends after the file; get the file again")
    return found._replace(offset=offset)


@cached_until_fork(OPEN_FILES)
def _file(path: DatasetFile, process: int) -> Hdf5File:
    return open_hdf5(path)


@lru_cache(maxsize=OPEN_FILES)
def _mapped(path: DatasetFile, process: int) -> mmap.mmap:
    """The bytes of a file. A change of them stays in this process."""
    with open_file(path) as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
