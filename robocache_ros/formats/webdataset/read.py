"""Read exported WebDataset shards."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from bisect import bisect_right
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import printable
from robocache_ros.formats.columns import MAX_BYTES, ArrayRows, channels_last, export_columns, npy_array, read_marks
from robocache_ros.formats.read import (
    MAX_EPISODES,
    MAX_STEPS,
    DatasetError,
    SourceEpisode,
    numbers,
    parse_object,
    read_object,
    refusing,
)
from robocache_ros.formats.schema import PROVENANCE
from robocache_ros.formats.webdataset.schema import ARRAY, EXTENSIONS, INDEX, MEMBER_BYTES, META, ROLES, sample_key
from robocache_ros.storage.paths import AnyPath, as_path
from robocache_ros.untrusted_files import DatasetFile, file_below, open_file, path_below

MAX_MEMBERS = 4_000_000  # of a file
OPEN_FILES = 16  # whose members stay in memory


class Place(NamedTuple):
    """The place of a member's data in the file, in bytes."""

    start: int
    size: int


@lru_cache(maxsize=OPEN_FILES)
def tar_members(path: DatasetFile, process: int) -> dict[str, Place]:
    """Return the members of a file by name.

    Errors:
        DatasetError: the file is missing, damaged or too large, or has a member that is not a file.
    """
    found: dict[str, Place] = {}
    at = 0
    with refusing(printable(path), "damaged", errors=(OSError, tarfile.TarError, ValueError)):
        size = path.stat().st_size
        with open_file(path) as file:
            while (head := file.read(tarfile.BLOCKSIZE)) and any(head):
                member = tarfile.TarInfo.frombuf(head, "utf-8", "strict")
                at += tarfile.BLOCKSIZE
                if not member.isreg() or not 0 <= member.size <= MEMBER_BYTES or len(found) == MAX_MEMBERS:
                    raise tarfile.TarError(f"{printable(member.name, 40)} is not a small file")
                if at + member.size > size:
                    raise tarfile.TarError(f"it ends within {printable(member.name, 40)}")
                found[member.name] = Place(at, member.size)
                at += -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                file.seek(at)
    return found


def read_members(path: DatasetFile, names: list[str]) -> list[bytes]:
    """Return the data of members.

    Errors:
        DatasetError: a member or the file is missing or damaged, or they take more memory than `MEMBER_BYTES`.
    """
    places = tar_members(path, os.getpid())
    if missing := [name for name in names if name not in places]:
        raise DatasetError(f"{printable(path)}: has no member {printable(missing[0], 60)}; get the file again")
    total = sum(places[name].size for name in names)
    if total > MEMBER_BYTES:
        shown = printable(names[0], 60)
        raise DatasetError(f"{printable(path)}: {shown} and others: {total:,} bytes; at most {MEMBER_BYTES:,} are read")
    found = []
    with refusing(printable(path), "cannot be read", errors=(OSError,)), open_file(path) as file:
        for name in names:
            file.seek(places[name].start)
            found.append(file.read(places[name].size))
    return found


class WebDatasetEpisodes:
    """The episodes of a dataset in the format webdataset.

    Args:
        path: the folder with dataset.json.

    Errors:
        DatasetError: a file is missing or damaged, or the shards are not an export of this project.
    """

    def __init__(self, path: str | AnyPath) -> None:
        self.folder = as_path(path)
        self.name = self.folder.name
        where = printable(self.folder / INDEX)
        index = read_object(file_below(self.folder, INDEX))
        self.export = export_columns(read_object(file_below(self.folder, PROVENANCE)), where)
        with refusing(where):
            shards = [(str(shard["name"]), int(shard["episodes"])) for shard in index["shards"]]
            if min((count for _, count in shards), default=0) < 0:
                raise ValueError("a shard of less than 0 episodes")
            self._episodes = [
                (
                    int(stated["samples"]),
                    str(stated["task"]),
                    None if stated["success"] is None else bool(stated["success"]),
                )
                for stated in index["episodes"]
            ]
        self._shards, self._ends = [name for name, _ in shards], list(accumulate(count for _, count in shards))
        count = len(self._episodes)
        if count > MAX_EPISODES or (self._ends[-1] if shards else 0) != count:
            raise DatasetError(f"{where}: {count:,} episodes, but the shards have others; get the file again")

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files by which a change of the dataset is noticed."""
        return (self.folder / INDEX, *(path_below(self.folder, name) for name in self._shards))

    def __len__(self) -> int:
        return len(self._episodes)

    def read(self, index: int) -> SourceEpisode:
        """Return an episode. Images are not decoded, and arrays are read when they are asked for."""
        path, keys, where = self._place(index)
        _, task, success = self._episodes[index]
        metas = [parse_object(data, f"{where}: {META}") for data in _members(path, keys, META)]
        with refusing(f"{where}: {META}", advice="export it again"):
            ticks = np.array([int(meta["tick_ns"]) for meta in metas], np.int64)
            rewards = np.array([float(meta["reward"]) for meta in metas], np.float32)
            names = self.export.names
            valid, age_ns = (np.array([[m[key][name] for name in names] for m in metas]) for key in ("valid", "age_ns"))
        marks = read_marks(self.export, valid, age_ns, where)
        found, arrays = self._values(path, keys, where)
        streams = self.export.episode_streams(ticks, marks, found, arrays, rewards, where)
        return SourceEpisode(streams, task, self.name, where, success)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        path, keys, where = self._place(index)
        metas = [parse_object(data, f"{where}: {META}") for data in _members(path, [keys[0], keys[-1]], META)]
        with refusing(f"{where}: {META}", advice="export it again"):
            return int(metas[0]["tick_ns"]), int(metas[1]["tick_ns"])

    def _place(self, index: int) -> tuple[DatasetFile, list[str], str]:
        """Return the file of an episode, the keys of its samples, and where it is."""
        path = file_below(self.folder, self._shards[bisect_right(self._ends, index)])
        where, count = f"{printable(path)}: episode {index}", self._episodes[index][0]
        if not 0 < count <= MAX_STEPS:
            raise DatasetError(f"{where}: {count:,} samples; 1 to {MAX_STEPS:,} are read")
        return path, [sample_key(index, tick) for tick in range(count)], where

    def _values(self, path: DatasetFile, keys: list[str], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the vectors and images of an episode, and its depth images and voxels, by stream."""
        members = tar_members(path, os.getpid())
        found: dict[str, Any] = {}
        arrays: dict[str, Any] = {}
        for field, role in ROLES.items():
            if f"{keys[0]}.{field}" in members:
                table = _rows(path, keys, field, where)
                found.update(self.export.split(table, role, f"{where}: {field}"))
        for name, about in self.export.streams.items():
            if about.kind == "vector" and about.role == "observation" and not about.width:  # a window
                found[name] = _rows(path, keys, f"{name}.npy", where)
            elif about.kind != "vector" and f"{keys[0]}.{name}.npz" in members:
                read = partial(_array, path, keys, f"{name}.npz", about.kind)
                arrays[name] = ArrayRows(len(keys), read, f"{where}: {name}.npz")
            for kind in EXTENSIONS.values():
                if about.kind == "image" and f"{keys[0]}.{name}.{kind}" in members:
                    found[name] = _ImageFiles(path, keys, f"{name}.{kind}")
        return found, arrays


class _ImageFiles:
    """The files of the images of an episode, each read when it is asked for."""

    def __init__(self, path: DatasetFile, keys: list[str], field: str) -> None:
        self._path, self._keys, self._field = path, keys, field

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, row: int) -> bytes:
        return _members(self._path, [self._keys[row]], self._field)[0]


def _members(path: DatasetFile, keys: list[str], field: str) -> list[bytes]:
    return read_members(path, [f"{key}.{field}" for key in keys])


def _rows(path: DatasetFile, keys: list[str], field: str, where: str) -> NDArray[np.float32]:
    """(T, D) of the arrays of a field. Their headers are those of the first, which is read once."""
    files = _members(path, keys, field)
    # Damaged headers of arrays raise errors of any kind.
    with refusing(f"{where}: {field}", "damaged", "export it again", (Exception,)):
        first = npy_array(files[0])
        head = files[0][: len(files[0]) - first.nbytes]
        if first.dtype != np.dtype("<f4") or any(len(f) != len(files[0]) or not f.startswith(head) for f in files):
            raise ValueError("its samples are not float32 of one shape")
    rows = np.stack([np.frombuffer(file, "<f4", first.size, len(head)) for file in files])
    return numbers(rows.reshape(len(files), *first.shape), f"{where}: {field}")


def _array(path: DatasetFile, keys: list[str], field: str, kind: str, row: int) -> NDArray[Any]:
    with zipfile.ZipFile(io.BytesIO(_members(path, [keys[row]], field)[0])) as archive:
        info = archive.getinfo(ARRAY)
        if info.file_size > MAX_BYTES:
            raise ValueError(f"{info.file_size:,} bytes")
        return channels_last(npy_array(archive.read(info)), kind)
