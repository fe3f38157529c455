"""Validation of Zarr folders in the layout of Diffusion Policy's ReplayBuffer."""

from __future__ import annotations

import itertools
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.check import ExportedRows, Findings, TickRows, check_finite, check_ticks, file_in, read_json
from robocache_ros.formats.diffusion_policy.schema import ACTION, CODECS, FOLDER
from robocache_ros.formats.diffusion_policy.zarr import zarr_array
from robocache_ros.formats.schema import BY_STREAM, TICK, TICK_COLUMNS, VALID
from robocache_ros.untrusted_files import read_bytes


class ZarrCheck:
    """Reads every chunk of a ReplayBuffer."""

    title = "Diffusion Policy (Zarr)"

    def recognizes(self, dataset: Path) -> bool:
        """Return whether the folder, or replay_buffer.zarr in it, has the groups data and meta."""
        root = self._root(dataset)
        return (root / "data" / ".zgroup").is_file() and (root / "meta").is_dir()

    def _root(self, dataset: Path) -> Path:
        return dataset / FOLDER if (dataset / FOLDER).is_dir() else dataset

    def check(self, findings: Findings) -> None:
        """Report everything that is wrong.

        Errors:
            RoboCacheError: meta/episode_ends cannot be read.
        """
        root = self._root(findings.dataset)
        inner = root.relative_to(findings.dataset).as_posix()
        prefix = "" if inner == "." else f"{inner}/"
        ends = _Array(findings, f"{prefix}meta/episode_ends").rows().reshape(-1)
        rising = len(ends) > 0 and ends[0] > 0 and bool((np.diff(ends) > 0).all())
        if not findings.check(rising, f"{prefix}meta/episode_ends", "is not rising from above 0"):
            return
        findings.counted["episodes"] += len(ends)
        findings.counted["rows"] += int(ends[-1])
        attributes = read_json(root, "data/.zattrs") if (root / "data" / ".zattrs").is_file() else {}
        absent = self._absent(findings, f"{prefix}data", attributes)
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

    def _absent(self, findings: Findings, folder: str, attributes: dict[str, Any]) -> dict[str, set[int]]:
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
    for name in (*shapes, *(f"robocache.{name}" for name in TICK_COLUMNS)):
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
        ticks, *tables = (found.pop(f"robocache.{name}") for name in TICK_COLUMNS)
        actions = exported.split({"action": found.pop(ACTION, None)})
        ages_ms, masks = (
            {
                name: _Array(findings, f"{prefix}data/robocache.{kind}.{name}").rows(start, stop)
                for name in exported.windows
            }
            for kind in ("sample_age_ms", "mask")
        )
        rows = TickRows(
            ticks.reshape(-1),
            tables[0],
            tables[1],
            tables[2],
            {name: table for name, table in {**found, **actions}.items() if name not in exported.windows},
            ages_ms=ages_ms,
            masks=masks,
            repeated={
                stream.name: same
                for stream in media
                if (same := pictures[stream.name].repeated(start, stop)) is not None
            },
        )
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
    """An array of a Zarr folder.

    Errors:
        RoboCacheError: its metadata cannot be used.
    """

    def __init__(self, findings: Findings, name: str) -> None:
        self._findings, self._name, self._path = findings, name, findings.dataset / name
        self._stored = zarr_array(read_json(findings.dataset, f"{name}/.zarray"), findings.dataset, name, name)
        self.shape = self._stored.shape
        self._whole_chunks: tuple[int, NDArray[Any]] = (0, np.zeros((0, *self.shape[1:]), self._stored.dtype))

    def check_chunks(self, absent: set[int]) -> bool:
        """Read every chunk; return whether all of them are there and can be decoded.

        Args:
            absent: rows whose chunk may be missing, in an array with one row per chunk.
        """
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
        """Return the values of rows [start, stop) of an array that is chunked in its first axis only.

        Errors:
            RoboCacheError: a chunk is missing, or cannot be decoded.
        """
        if not self._is_read() or self._stored.chunks[1:] != self.shape[1:]:
            raise RoboCacheError(f"{self._name}: is not compared: its chunks or its compression are not known")
        stop, size = self.shape[0] if stop is None else stop, self._stored.chunks[0]
        first, values = self._whole_chunks
        if start < first or stop > first + len(values):  # the next episode is often in the same chunk
            first = start // size * size
            values = self._stored.read(first, min(-(-stop // size) * size, self.shape[0]))
            self._whole_chunks = first, values
        return values[start - first : stop - first]


ZARR_CHECK = ZarrCheck()
