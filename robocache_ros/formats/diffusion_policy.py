"""Zarr datasets in the layout of Diffusion Policy's ReplayBuffer (https://github.com/real-stanford/diffusion_policy).

Zarr format 2 folders, with JSON metadata and one file per chunk
(https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html), are written without the zarr library, whose version 3 and
the version 2 that Diffusion Policy needs exclude each other.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.storage.codecs import decompress
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.file_limits import IMAGE_RATIO, RATIO, check_decoded
from robocache_ros.formats import write as stream_arrays
from robocache_ros.formats.check import (
    ExportedRows,
    Findings,
    FormatCheck,
    check_finite,
    check_ticks,
    file_in,
    read_json,
)
from robocache_ros.formats.columns import ArrayRows, export_columns, read_marks
from robocache_ros.formats.dataset import ExportedDataset
from robocache_ros.formats.read import (
    AGE,
    BY_STREAM,
    MAX_EPISODES,
    MAX_STEPS,
    MAX_VECTOR_BYTES,
    TICK,
    VALID,
    DatasetError,
    SourceEpisode,
    numbers,
    read_object,
    refusing,
)
from robocache_ros.formats.write import RAW, FileTask, VectorArray, WrittenByTasks, group_tasks, row_bytes
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.paths import AnyPath, as_path
from robocache_ros.untrusted_files import file_below, folder_below, path_below, read_bytes

FOLDER = "replay_buffer.zarr"
ACTION, REWARD = "action", "reward"  # arrays in addition to those of the observations, which have the names of streams
MAX_CHUNK_BYTES, MAX_CHUNKS = 256 << 20, 10_000_000
CODECS = ("", "zstd", "zlib", "gzip")  # of chunks that are read


CHUNK_BYTES = 2_000_000  # of arrays of small rows, as ReplayBuffer chooses them
ZSTD_LEVEL = 1


def write_group(folder: Path, attributes: dict[str, Any] | None = None) -> None:
    """Create a group, with attributes of JSON values."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / ".zgroup", {"zarr_format": 2})
    if attributes:
        _write_json(folder / ".zattrs", attributes)


def write_array(folder: Path, rows: int, shape: tuple[int, ...], dtype: str, parts: Iterable[NDArray[Any]]) -> None:
    """Write an array. A chunk is a number of whole rows, compressed with zstd; the last one is filled up with zeros.

    Args:
        folder: of the array.
        rows: length of the array.
        shape: of a row.
        dtype: of the values; stored in little endian.
        parts: the rows, in order.
    """
    stored = np.dtype(dtype).newbyteorder("<")
    chunk_rows = max(1, min(rows, CHUNK_BYTES // max(1, stored.itemsize * math.prod(shape))))
    _write_metadata(folder, rows, (chunk_rows, *shape), stored)
    buffer: NDArray[Any] = np.zeros((chunk_rows, *shape), stored)
    row = 0
    for values in parts:
        while len(values):
            place = row % chunk_rows
            fits = values[: chunk_rows - place]
            buffer[place : place + len(fits)] = fits
            row += len(fits)
            if row % chunk_rows == 0:
                _write_chunk(folder, row // chunk_rows - 1, buffer)
            values = values[len(fits) :]
    if row % chunk_rows:
        buffer[row % chunk_rows :] = 0
        _write_chunk(folder, row // chunk_rows, buffer)


def _write_metadata(folder: Path, rows: int, chunk: tuple[int, ...], stored: np.dtype[Any]) -> None:
    """Write the description of an array, given the shape of a chunk of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {
        "chunks": list(chunk),
        "compressor": {"id": "zstd", "level": ZSTD_LEVEL},
        "dtype": stored.str,
        "fill_value": 0,
        "filters": None,
        "order": "C",
        "shape": [rows, *chunk[1:]],
        "zarr_format": 2,
    }
    _write_json(folder / ".zarray", metadata)


def _write_chunk(folder: Path, number: int, chunk: NDArray[Any]) -> Path:
    """Write a chunk of rows; return its file."""
    path = folder / _chunk_name(number, chunk.ndim)
    codec = need("pyarrow", "export").Codec("zstd", compression_level=ZSTD_LEVEL)
    with path.open("wb") as file:
        file.write(codec.compress(chunk))
    return path


def _chunk_name(number: int, axes: int, separator: str = ".") -> str:
    """Return the name of the file of a chunk of rows, in an array of so many axes."""
    return separator.join(map(str, (number, *[0] * (axes - 1))))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # no hard links on this file system, or too many of one file
        shutil.copyfile(source, target)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=4, sort_keys=True), encoding="utf-8")


_ZLIB = ("zlib", "gzip")


@dataclass(eq=False)
class ZarrRows:
    """An array that is stored in chunks; `read` and `row` need one that is chunked along its first axis only."""

    root: AnyPath  # of the dataset
    name: str  # below the root
    where: str  # for errors
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    codec: str  # of chunks; those that are not in `CODECS` are not read
    order: str
    separator: str

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks along each axis."""
        return tuple(-(-side // chunk) for side, chunk in zip(self.shape, self.chunks, strict=True))

    @property
    def chunk_bytes(self) -> int:
        """Size of a chunk."""
        return math.prod(self.chunks) * int(self.dtype.itemsize)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows [start, stop).

        Errors:
            DatasetError: a chunk is missing or damaged. Zarr takes zeros for a missing one; exports leave out none.
        """
        found = np.zeros((stop - start, *self.shape[1:]), self.dtype)
        nbytes = stored = 0
        for number in range(start // self.chunks[0], -(-stop // self.chunks[0])):
            first = number * self.chunks[0]
            low, high = max(first, start), min(first + self.chunks[0], stop)
            chunk, size = self.chunk(self.file_of(number))
            nbytes, stored = nbytes + chunk.nbytes, stored + size
            self._check(nbytes, stored, self.where)
            found[low - start : high - start] = chunk[low - first : high - first]
        return found

    def row(self, row: int, *, absent: bool) -> NDArray[Any]:
        """Return a row; zeros if its stream has no value there and the export left out its chunk."""
        if absent and self.chunks[0] == 1 and not path_below(self.root, f"{self.name}/{self.file_of(row)}").exists():
            return np.zeros(self.shape[1:], self.dtype)
        array: NDArray[Any] = self.read(row, row + 1)[0]
        return array

    def file_of(self, number: int) -> str:
        """Return the name of the file of a chunk of rows."""
        return _chunk_name(number, len(self.shape), self.separator)

    def chunk(self, file: str) -> tuple[NDArray[Any], int]:
        """Return a chunk, and the size of its file."""
        where, path = f"{self.where}/{file}", path_below(self.root, f"{self.name}/{file}")
        if not path.exists():
            raise DatasetError(f"{where}: not there; get the file again")
        with refusing(where, "damaged"):
            data = read_bytes(file_below(self.root, f"{self.name}/{file}"))
            self._check(self.chunk_bytes, len(data), where)
            values = np.frombuffer(_unpacked(self.codec, data, self.chunk_bytes), self.dtype)
            return values.reshape(self.chunks), len(data)

    def _check(self, nbytes: int, stored: int, where: str) -> None:
        check_decoded(nbytes, stored, where, IMAGE_RATIO if len(self.shape) > 2 else RATIO)


def _unpacked(codec: str, data: Any, nbytes: int) -> Any:
    """Return the bytes of a chunk of `nbytes`, given those of its file.

    Errors:
        ValueError: it is damaged.
    """
    try:
        if codec in _ZLIB:
            data = zlib.decompressobj(47).decompress(data, nbytes + 1)  # of either
        elif codec:
            data = decompress(codec, data, nbytes)
    except (RoboCacheError, zlib.error) as error:
        raise ValueError(str(error)) from None
    if len(data) != nbytes:
        raise ValueError(f"has {len(data):,} bytes; a chunk has {nbytes:,}")
    return data


def zarr_array(stated: Any, root: AnyPath, name: str, where: str) -> ZarrRows:
    """Return an array by its description, the contents of .zarray."""
    with refusing(f"{where}/.zarray", "not an array of Zarr format 2", "export it again"):
        shape, chunks = (tuple(int(size) for size in stated[key]) for key in ("shape", "chunks"))
        dtype, codec = np.dtype(stated["dtype"]), str((stated.get("compressor") or {}).get("id", ""))
        order, separator = str(stated.get("order", "C")), str(stated.get("dimension_separator", "."))
        usable = len(shape) == len(chunks) > 0 and min(chunks) > 0 and min(shape) >= 0 and dtype.kind in "biuf"
        codec = "filters" if stated.get("filters") else codec
        found = ZarrRows(root, name, where, shape, chunks, dtype, codec, order, separator)
        if not usable or separator not in (".", "/"):
            raise ValueError(f"shape {shape}, chunks {chunks}, {dtype}")
        if math.prod(found.counts) > MAX_CHUNKS or found.chunk_bytes > MAX_CHUNK_BYTES:
            raise ValueError(f"{math.prod(found.counts):,} chunks of {found.chunk_bytes:,} bytes")
    return found


class _DiffusionPolicyFormat(WrittenByTasks):
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
    data = folder / DIFFUSION_POLICY.entry / "data"
    for vector in _vectors(dataset):
        parts = map(vector.read, dataset.episodes)
        write_array(data / vector.name, dataset.frames, vector.shape, vector.dtype, parts)


def _write_media(dataset: ExportedDataset, folder: Path, name: str, group: range) -> None:
    """Write the rows of some episodes into an array of images or voxels, whose chunks have one row each.

    Chunks that are equal share the space of one file, where the file system has hard links. Rows without a value have
    no chunk: they are zeros.
    """
    (media,) = (media for media in stream_arrays.media(dataset) if media.name == name)
    array, stored = folder / DIFFUSION_POLICY.entry / "data" / name, np.dtype(media.dtype).newbyteorder("<")
    array.mkdir(parents=True, exist_ok=True)
    if group.start == 0:
        _write_metadata(array, dataset.frames, (1, *media.shape), stored)
    for episode in map(dataset.episodes.__getitem__, group):
        for start, stop, value in media.runs(episode):
            if value is not None:
                first, *others = range(episode.first_row + start, episode.first_row + stop)
                chunk = np.ascontiguousarray(value[None], stored)
                path = _write_chunk(array, first, chunk)
                for row in others:
                    _link(path, array / _chunk_name(row, chunk.ndim))


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
        write_array(folder / name, len(episodes), (), "int64", [values])


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


DIFFUSION_POLICY = _DiffusionPolicyFormat()


MARKS = TICK, VALID, AGE


class ReplayBufferEpisodes:
    """The episodes of a dataset in the format diffusion_policy: the folder of the export, or replay_buffer.zarr."""

    def __init__(self, path: str | AnyPath) -> None:
        folder = as_path(path)
        self.folder = folder_below(folder, FOLDER) if (folder / FOLDER).is_dir() else folder
        self.name = self.folder.stem
        self.files = (self.folder / ".zattrs", self.folder / "meta" / "episode_ends" / "0")
        where = printable(self.folder / ".zattrs")
        self.export = export_columns(read_object(file_below(self.folder, ".zattrs")).get("robocache", {}), where)
        meta = self.folder / "meta"
        tasks = read_object(file_below(self.folder, "meta/.zattrs")).get("tasks")
        ends, task_index, success = (
            _all(self.folder, f"meta/{name}") for name in ("episode_ends", "task_index", "success")
        )
        if not (
            isinstance(tasks, list)
            and len(ends) == len(task_index) == len(success) <= MAX_EPISODES
            and (np.diff(ends, prepend=0) > 0).all()
            and all(0 <= index < len(tasks) for index in task_index.tolist())
        ):
            raise DatasetError(f"{printable(meta)}: its episodes are malformed; export the dataset again")
        self._ends, self._tasks = ends.tolist(), [str(tasks[index]) for index in task_index.tolist()]
        self._success = [None if value < 0 else value > 0 for value in success.tolist()]
        self._arrays: dict[str, ZarrRows] = {}
        for name in (*MARKS, *self.export.names, ACTION, REWARD):
            if path_below(self.folder, f"data/{name}/.zarray").is_file():
                self._arrays[name] = _opened(self.folder, f"data/{name}")
        total = self._ends[-1] if self._ends else 0
        for name in {*MARKS, *self._arrays}:
            if name not in self._arrays or self._arrays[name].count != total:
                raise DatasetError(f"{where}: data/{printable(name, 40)} does not have {total:,} rows; export it again")
            if name in MARKS and self._arrays[name].dtype.kind not in "iu":
                raise DatasetError(f"{where}: data/{name} is {self._arrays[name].dtype}, not integers; export it again")

    def __len__(self) -> int:
        return len(self._ends)

    def read(self, index: int) -> SourceEpisode:
        """Return an episode. Images and arrays are read when they are asked for."""
        start, stop, where = self._place(index)
        ticks, valid, age_ns = (self._rows(name, start, stop, where) for name in MARKS)
        marks = read_marks(self.export, valid, age_ns, where)
        found: dict[str, Any] = {}
        for name, about in self.export.streams.items():
            if name not in self._arrays or about.role in (ACTION, REWARD):
                continue
            stored = self._arrays[name]
            if about.kind == "vector":
                found[name] = numbers(self._rows(name, start, stop, where), f"{where}: {name}")
            else:
                is_image = about.kind == "image" and stored.dtype == np.uint8 and stored.shape[-1:] == (3,)
                absent = marks.valid[:, self.export.names.index(name)] == 0
                read = partial(_row, stored, start, absent)
                found[name] = ArrayRows(stop - start, read, f"{where}: {name}", not is_image)
        if ACTION in self._arrays:
            table = numbers(self._rows(ACTION, start, stop, where), f"{where}: {ACTION}")
            found.update(self.export.split(table, ACTION, f"{where}: {ACTION}"))
        rewards = self._rows(REWARD, start, stop, where) if REWARD in self._arrays else None
        streams = self.export.episode_streams(ticks.astype(np.int64), marks, found, rewards, where)
        return SourceEpisode(streams, self._tasks[index], self.name, where, self._success[index])

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        start, stop, _ = self._place(index)
        ticks = self._arrays[TICK]
        return int(ticks.read(start, start + 1)[0]), int(ticks.read(stop - 1, stop)[0])

    def _place(self, index: int) -> tuple[int, int, str]:
        start, stop = self._ends[index - 1] if index else 0, self._ends[index]
        where = f"{printable(self.folder)}: episode {index}"
        if stop - start > MAX_STEPS:
            raise DatasetError(f"{where}: {stop - start:,} rows; at most {MAX_STEPS:,} are read")
        return start, stop, where

    def _rows(self, name: str, start: int, stop: int, where: str) -> NDArray[Any]:
        stored = self._arrays[name]
        nbytes = (stop - start) * int(np.prod(stored.shape[1:])) * stored.dtype.itemsize
        if nbytes > MAX_VECTOR_BYTES:
            raise DatasetError(
                f"{where}: {printable(name, 40)}: {nbytes:,} bytes; at most {MAX_VECTOR_BYTES:,} are read"
            )
        return stored.read(start, stop)


def _opened(root: AnyPath, name: str) -> ZarrRows:
    where = printable(root / name)
    stored = zarr_array(read_object(file_below(root, f"{name}/.zarray")), root, name, where)
    whole_rows = stored.chunks[1:] == stored.shape[1:] and (stored.order, stored.separator) == ("C", ".")
    if not whole_rows or stored.codec not in CODECS or not stored.chunk_bytes:
        raise DatasetError(f"{where}: its chunks or its compression are not those of an export; export it again")
    return stored


def _all(root: AnyPath, name: str) -> NDArray[np.int64]:
    stored = _opened(root, name)
    if stored.count > MAX_EPISODES or len(stored.shape) > 1:
        raise DatasetError(f"{printable(root / name)}: more than {MAX_EPISODES:,} episodes; split the dataset")
    return stored.read(0, stored.count).astype(np.int64)


def _row(stored: ZarrRows, start: int, absent: NDArray[np.bool_], row: int) -> NDArray[Any]:
    return stored.row(start + row, absent=bool(absent[row]))


def _recognizes(dataset: Path) -> bool:
    """Return whether the folder, or replay_buffer.zarr in it, has the groups data and meta."""
    root = _root(dataset)
    return (root / "data" / ".zgroup").is_file() and (root / "meta").is_dir()


def _root(dataset: Path) -> Path:
    return dataset / FOLDER if (dataset / FOLDER).is_dir() else dataset


def _check(findings: Findings) -> None:
    """Reads every chunk of a ReplayBuffer."""
    root = _root(findings.dataset)
    inner = root.relative_to(findings.dataset).as_posix()
    prefix = "" if inner == "." else f"{inner}/"
    ends = _Array(findings, f"{prefix}meta/episode_ends").rows().reshape(-1)
    rising = len(ends) > 0 and ends[0] > 0 and bool((np.diff(ends) > 0).all())
    if not findings.check(rising, f"{prefix}meta/episode_ends", "is not rising from above 0"):
        return
    findings.counted["episodes"] += len(ends)
    findings.counted["rows"] += int(ends[-1])
    attributes = read_json(root, "data/.zattrs") if (root / "data" / ".zattrs").is_file() else {}
    absent = _absent(findings, f"{prefix}data", attributes)
    with findings.reading(prefix or "."):
        _check_own(findings, root, prefix, ends, attributes)
    for path in sorted((root / "data").iterdir()):
        if not path.is_dir():
            continue
        name = f"{prefix}data/{path.name}"
        with findings.reading(name):
            array = _Array(findings, name)
            text = f"{array.shape[0]} rows; the episodes have {ends[-1]}"
            findings.check(array.shape[0] == ends[-1], name, text)
            if array.check_chunks(absent.get(path.name, set())) and path.name == TICK and "rate_hz" in attributes:
                for episode, part in enumerate(np.split(array.rows().reshape(-1), ends[:-1])):
                    check_ticks(findings, f"{name}, episode {episode}", part, int(attributes["rate_hz"]))


def _absent(findings: Findings, folder: str, attributes: dict[str, Any]) -> dict[str, set[int]]:
    """Return by stream the rows without a value, of a dataset that this package wrote."""
    streams = (attributes.get("columns") or {}).get(VALID)
    if not isinstance(streams, list) or not (findings.dataset / folder / VALID).is_dir():
        return {}
    valid = _Array(findings, f"{folder}/{VALID}").rows()
    return {name: set(np.flatnonzero(column == 0).tolist()) for name, column in zip(streams, valid.T, strict=False)}


def _check_own(findings: Findings, root: Path, prefix: str, ends: NDArray[Any], attributes: dict[str, Any]) -> None:
    """Compare a dataset that this package wrote with its provenance."""
    raw = read_json(root, ".zattrs").get("robocache") if (root / ".zattrs").is_file() else None
    if raw is None:
        text = "has no provenance robocache; without it readers do not know the streams"
        findings.check(not any(root.glob("data/robocache.*")), f"{prefix}.zattrs", text)
        return
    exported = ExportedRows(findings, f"{prefix}.zattrs", raw)
    exported.check_count(len(ends), f"{prefix}meta/episode_ends")
    exported.check_value(f"{prefix}data/.zattrs", "rate_hz", attributes.get("rate_hz"), exported.spec.rate_hz)
    columns = attributes.get("columns") or {}
    wanted = {s.name: list(s.components) for s in exported.spec.vectors if s.role == "observation"}
    wanted |= {f"robocache.{name}": list(exported.layout.names) for name in BY_STREAM}
    for key, names in {**wanted, ACTION: exported.labels("action")}.items():
        exported.check_names(f"columns.{key}", columns.get(key), names, where=f"{prefix}data/.zattrs")
    shapes = {s.name: s.shape for s in exported.spec.vectors if s.role == "observation"}
    if width := sum(stream.width for stream in exported.of_role("action")):
        shapes[ACTION] = (width,)
    arrays: dict[str, _Array] = {}
    for name in (*shapes, *(f"robocache.{name}" for name in exported.columns)):
        array = arrays[name] = _Array(findings, f"{prefix}data/{name}")
        if name in shapes:
            exported.check_value(f"{prefix}data/{name}", "its shape", list(array.shape[1:]), list(shapes[name]))
        if array.shape[0] != ends[-1]:
            return
    media = [s for s in exported.spec.media if (root / "data" / s.name).is_dir()]
    pictures = {stream.name: _Array(findings, f"{prefix}data/{stream.name}") for stream in media}
    for number, (start, stop) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        where = f"{prefix}data, episode {number}"
        found = {name: array.rows(start, stop) for name, array in arrays.items()}
        columns = {name: found.pop(f"robocache.{name}") for name in exported.columns}
        actions = exported.split({"action": found.pop(ACTION, None)})
        same = {stream.name: pictures[stream.name].repeated(start, stop) for stream in media}
        repeated = {name: of_stream for name, of_stream in same.items() if of_stream is not None}
        rows = exported.tick_rows(columns, {**found, **actions}, repeated=repeated)
        if not exported.check_episode(where, number, rows):
            return
    _check_episodes(findings, exported, root, prefix)


def _check_episodes(findings: Findings, exported: ExportedRows, root: Path, prefix: str) -> None:
    """Check what is known of each episode."""
    tasks = read_json(root, "meta/.zattrs").get("tasks")
    exported.check_value(f"{prefix}meta/.zattrs", "the list of tasks", tasks, exported.tasks)
    for name in ("task_index", "success"):
        values = _Array(findings, f"{prefix}meta/{name}").rows().reshape(-1).tolist()
        exported.check_count(len(values), f"{prefix}meta/{name}")
        for number, (value, episode) in enumerate(zip(values, exported.episodes, strict=False)):
            wanted = exported.tasks.index(episode.task)
            if name == "success":
                wanted = -1 if episode.success is None else int(episode.success)
            exported.check_value(f"{prefix}meta/{name}, episode {number}", "it", value, wanted)


class _Array:
    """An array of a Zarr folder."""

    def __init__(self, findings: Findings, name: str) -> None:
        self._findings, self._name, self._path = findings, name, findings.dataset / name
        self._stored = zarr_array(read_json(findings.dataset, f"{name}/.zarray"), findings.dataset, name, name)
        self.shape = self._stored.shape
        self._whole_chunks: tuple[int, NDArray[Any]] = (0, np.zeros((0, *self.shape[1:]), self._stored.dtype))

    def check_chunks(self, absent: set[int]) -> bool:
        """Read every chunk; return whether all but those of `absent` rows are there, and all can be decoded."""
        stored, findings, damaged = self._stored, self._findings, 0
        found = dict.fromkeys(absent if stored.chunks[0] == 1 else (), 0)
        names = (path.relative_to(self._path).as_posix() for path in self._path.rglob("*") if path.is_file())
        chunks = sorted(index for index in map(self._index, names) if index is not None)
        for index in chunks:
            if index[0] in found:
                found[index[0]] += 1
            if not self._is_read():
                continue
            name = f"{self._name}/{stored.separator.join(map(str, index))}"
            before = len(findings.found)
            with findings.reading(name):
                check_finite(findings, name, stored.chunk(name.removeprefix(f"{self._name}/"))[0])
                findings.counted["chunks"] += 1
            damaged += len(findings.found) > before
        files = (file for file in self._path.iterdir() if file.is_file() and not file.name.startswith("."))
        extra = [file.name for file in files if self._index(file.name) is None]
        findings.check(not extra, self._name, f"{extra[:1]} is not a chunk of its {list(self.shape)} values")
        missing = math.prod(stored.counts) - len(chunks)
        missing -= sum(math.prod(stored.counts[1:]) - count for row, count in found.items() if row < stored.counts[0])
        text = f"{missing:,} chunks are missing: readers take zeros for them"
        return findings.check(missing == 0, self._name, text) and damaged == 0

    def _is_read(self) -> bool:
        known = self._stored.codec in CODECS
        if not known:
            self._findings.skip(f"values with the compression {printable(self._stored.codec, 30)}")
        return known

    def _index(self, name: str) -> tuple[int, ...] | None:
        """Return the place of the chunk of a file in the folder; None if it is not a chunk."""
        parts = name.split(self._stored.separator)
        if len(parts) != len(self.shape) or not all(part.isdecimal() and part.isascii() for part in parts):
            return None
        index = tuple(map(int, parts))
        named = self._stored.separator.join(map(str, index)) == name
        inside = all(k < count for k, count in zip(index, self._stored.counts, strict=True))
        return index if named and inside else None

    def repeated(self, start: int, stop: int) -> NDArray[np.bool_] | None:
        """Return in which rows of [start, stop) the chunk is that of the row before; None if chunks have more rows."""
        if self._stored.chunks[0] != 1 or math.prod(self._stored.counts[1:]) != 1:
            return None
        same = np.zeros(stop - start, np.bool_)
        last: tuple[os.stat_result, bytes | None] | None = None
        for row in range(start, stop):
            path = self._path / self._stored.file_of(row)
            if not path.is_file():
                last = None
                continue
            stated = path.stat()
            if last is not None and os.path.samestat(last[0], stated):
                same[row - start] = True
                continue
            data = read_bytes(file_in(self._findings.dataset, path.relative_to(self._findings.dataset)))
            same[row - start] = last is not None and data == last[1]
            last = stated, data
        return same

    def rows(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return the values of rows [start, stop) of an array that is chunked in its first axis only."""
        if not self._is_read() or self._stored.chunks[1:] != self.shape[1:]:
            raise RoboCacheError(f"{self._name}: is not compared: its chunks or its compression are not known")
        stop, size = self.shape[0] if stop is None else stop, self._stored.chunks[0]
        first, values = self._whole_chunks
        if start < first or stop > first + len(values):  # the next episode is often in the same chunk
            first = start // size * size
            values = self._stored.read(first, min(-(-stop // size) * size, self.shape[0]))
            self._whole_chunks = first, values
        return values[start - first : stop - first]


ZARR_CHECK = FormatCheck("Diffusion Policy (Zarr)", _recognizes, _check)
