"""Validation of Zarr folders in the layout of Diffusion Policy's ReplayBuffer."""

from __future__ import annotations

import math
import operator
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.validate.array_values import check_finite, check_ticks
from robocache_ros.export.validate.findings import Findings, file_in, read_json
from robocache_ros.extras import need
from robocache_ros.file_limits import IMAGE_RATIO, RATIO, check_decoded
from robocache_ros.untrusted_files import read_bytes

FOLDER = "replay_buffer.zarr"
VALID = "robocache.valid"  # of datasets that this package wrote: 0 where a stream has no value
CHUNK_BYTES = 256 << 20
MAX_CHUNKS = 10_000_000
CODECS = ("zstd", "zlib", "gzip")


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
        ends = _Array(findings, f"{prefix}meta/episode_ends").read().reshape(-1)
        rising = len(ends) > 0 and ends[0] > 0 and bool((np.diff(ends) > 0).all())
        if not findings.check(rising, f"{prefix}meta/episode_ends", "is not rising from above 0"):
            return
        findings.counted["episodes"] += len(ends)
        findings.counted["rows"] += int(ends[-1])
        attributes = read_json(root, "data/.zattrs") if (root / "data" / ".zattrs").is_file() else {}
        absent = self._absent(findings, f"{prefix}data", attributes)
        for path in sorted((root / "data").iterdir()):
            if not path.is_dir():
                continue
            name = f"{prefix}data/{path.name}"
            with findings.reading(name, ValueError, TypeError, KeyError):
                array = _Array(findings, name)
                text = f"{array.shape[0]} rows; the episodes have {ends[-1]}"
                findings.check(array.shape[0] == ends[-1], name, text)
                if (
                    array.check_chunks(absent.get(path.name, set()))
                    and path.name == "robocache.tick_ns"
                    and "rate_hz" in attributes
                ):
                    for episode, part in enumerate(np.split(array.read().reshape(-1), ends[:-1])):
                        check_ticks(findings, f"{name}, episode {episode}", part, int(attributes["rate_hz"]))

    def _absent(self, findings: Findings, folder: str, attributes: dict[str, Any]) -> dict[str, set[int]]:
        """Return by stream the rows without a value, of a dataset that this package wrote."""
        streams = (attributes.get("columns") or {}).get(VALID)
        if not isinstance(streams, list) or not (findings.dataset / folder / VALID).is_dir():
            return {}
        valid = _Array(findings, f"{folder}/{VALID}").read()
        return {name: set(np.flatnonzero(column == 0).tolist()) for name, column in zip(streams, valid.T, strict=False)}


class _Array:
    """An array of a Zarr folder.

    Errors:
        RoboCacheError: its metadata cannot be used.
    """

    def __init__(self, findings: Findings, name: str) -> None:
        self._findings, self._name, self._path = findings, name, findings.dataset / name
        raw = read_json(findings.dataset, f"{name}/.zarray")
        try:
            self.shape = tuple(int(side) for side in raw["shape"])
            self._chunks = tuple(int(side) for side in raw["chunks"])
            self._dtype = np.dtype(raw["dtype"])
            self._codec = (raw.get("compressor") or {}).get("id")
            self._filters = raw.get("filters") or []
            self._separator = str(raw.get("dimension_separator", "."))
        except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise RoboCacheError(f"{name}/.zarray: is not of Zarr format 2 ({printable(error, 60)})") from None
        counts = [-(-side // max(chunk, 1)) for side, chunk in zip(self.shape, self._chunks, strict=False)]
        usable = len(self.shape) == len(self._chunks) > 0 and min(self._chunks) > 0 and self._dtype.kind in "biuf"
        usable = usable and self._separator in (".", "/")
        if not usable or math.prod(counts) > MAX_CHUNKS or self._chunk_bytes > CHUNK_BYTES:
            raise RoboCacheError(f"{name}/.zarray: its shape, chunks or dtype cannot be read")
        self._counts = counts

    @property
    def _chunk_bytes(self) -> int:
        return math.prod(self._chunks) * int(self._dtype.itemsize)

    def check_chunks(self, absent: set[int]) -> bool:
        """Read every chunk; return whether all of them are there and can be decoded.

        Args:
            absent: rows whose chunk may be missing, in an array with one row per chunk.
        """
        damaged = 0
        found = dict.fromkeys(absent if self._chunks[0] == 1 else (), 0)
        names = (path.relative_to(self._path).as_posix() for path in self._path.rglob("*") if path.is_file())
        chunks = sorted(index for index in map(self._index, names) if index is not None)
        for index in chunks:
            if index[0] in found:
                found[index[0]] += 1
            path = self._path / self._separator.join(map(str, index))
            try:
                chunk = self._chunk(path)
            except ValueError as error:
                damaged += 1
                where = f"{self._name}/{path.name}"
                self._findings.add(where, str(error).removeprefix(f"{where}: "))
                continue
            if chunk is not None:
                check_finite(self._findings, f"{self._name}/{path.name}", chunk)
                self._findings.counted["chunks"] += 1
        missing = math.prod(self._counts) - len(chunks)
        missing -= sum(math.prod(self._counts[1:]) - count for row, count in found.items() if row < self._counts[0])
        text = f"{missing:,} chunks are missing: readers take zeros for them"
        return self._findings.check(missing == 0, self._name, text) and damaged == 0

    def _index(self, name: str) -> tuple[int, ...] | None:
        """Return the place of the chunk of a file in the folder; None if it is not a chunk."""
        parts = name.split(self._separator)
        if len(parts) != len(self._counts) or not all(part.isdecimal() and part.isascii() for part in parts):
            return None
        index = tuple(map(int, parts))
        named = self._separator.join(map(str, index)) == name
        return index if named and all(map(operator.lt, index, self._counts)) else None

    def read(self) -> NDArray[Any]:
        """Return all values of an array that is chunked in its first axis alone.

        Errors:
            RoboCacheError: a chunk is missing, or cannot be decoded.
        """
        parts: list[NDArray[Any]] = []
        stored = 0
        for number in range(self._counts[0]):
            path = self._path / self._separator.join([str(number)] + ["0"] * (len(self.shape) - 1))
            try:
                chunk = self._chunk(path) if path.is_file() else None
            except ValueError as error:
                where = f"{self._name}/{path.name}"
                raise RoboCacheError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None
            if chunk is None:
                raise RoboCacheError(f"{self._name}/{path.name}: is missing, or has a compression that is not known")
            parts.append(chunk)
            stored += path.stat().st_size
            check_decoded(len(parts) * self._chunk_bytes, stored, self._name)
        return np.concatenate(parts)[: self.shape[0]] if parts else np.zeros(self.shape, self._dtype)

    def _chunk(self, path: Path) -> NDArray[Any] | None:
        """Return a chunk; None if its compression is not known. ValueError: it is damaged."""
        if self._filters or self._codec not in (*CODECS, None):
            self._findings.skip(f"values with the compression {printable(self._codec, 30)}")
            return None
        data = read_bytes(file_in(self._findings.dataset, path.relative_to(self._findings.dataset)))
        ratio = IMAGE_RATIO if len(self.shape) > 2 else RATIO
        check_decoded(self._chunk_bytes, len(data), f"{self._name}/{path.name}", ratio)
        if self._codec == "zstd":
            pyarrow = need("pyarrow", "export")
            try:
                data = pyarrow.Codec("zstd").decompress(data, decompressed_size=self._chunk_bytes, asbytes=True)
            except (pyarrow.ArrowException, OSError) as error:
                raise ValueError(f"is damaged ({printable(error, 60)})") from None
        elif self._codec is not None:
            unpacker = zlib.decompressobj(47)  # zlib or gzip
            try:
                data = unpacker.decompress(data, self._chunk_bytes + 1)
            except zlib.error as error:
                raise ValueError(f"is damaged ({error})") from None
        if len(data) != self._chunk_bytes:
            raise ValueError(f"has {len(data)} bytes; a chunk has {self._chunk_bytes}")
        return np.frombuffer(data, self._dtype).reshape(self._chunks)


ZARR_CHECK = ZarrCheck()
