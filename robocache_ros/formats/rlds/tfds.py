"""TFDS datasets: their features and their episodes, without TensorFlow."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.read import read_object, refusing
from robocache_ros.formats.rlds.schema import FEATURES, INFO, file_name
from robocache_ros.formats.rlds.tfrecord import RECORD_BYTES, Values, parse_example, read_records
from robocache_ros.storage.paths import AnyPath
from robocache_ros.untrusted_files import file_below, path_below

MAX_FEATURES, MAX_DEPTH = 10_000, 32
ARRAY_BYTES = 1 << 30  # limit of a compressed array
_TYPES = {kind: kind for kind in ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")}
_TYPES |= {"float16": "float16", "bfloat16": "float32", "float32": "float32", "float64": "float64"}


@dataclass(frozen=True)
class TfdsFeature:
    """One feature of a record.

    Attributes:
        path: its name in a record, such as `steps/observation/image`.
        kind: tensor, text or image.
        dims: sizes of its dimensions, those of sequences first; -1: differs from record to record.
        dtype: of NumPy; empty for text and images.
        encoding: of a tensor: none, bytes or zlib.
        levels: number of sequences that it is in: 1 for a feature of a step.
    """

    path: str
    kind: str
    dims: tuple[int, ...]
    dtype: str
    encoding: str
    levels: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return self.dims[self.levels :]


class CompressedArrays(Sequence["NDArray[Any]"]):
    """Arrays of which each is stored as bytes, and is decompressed when it is asked for.

    Errors:
        ValueError: an array is damaged or does not have the feature's shape.
    """

    def __init__(self, feature: TfdsFeature, stored: Sequence[memoryview]) -> None:
        self._feature, self._stored = feature, stored
        self._dtype = np.dtype(feature.dtype).newbyteorder("<")
        self._nbytes = math.prod(feature.shape) * self._dtype.itemsize
        if not 0 <= self._nbytes <= ARRAY_BYTES:
            raise ValueError(f"arrays of shape {list(feature.shape)} are not read")

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, step: Any) -> Any:
        data: bytes | memoryview = self._stored[step]
        if self._feature.encoding == "zlib":
            try:
                data = zlib.decompressobj().decompress(data, self._nbytes + 1)
            except zlib.error as error:
                raise ValueError(f"{self._feature.path}: step {step}: {error}") from None
        if len(data) != self._nbytes:
            raise ValueError(f"{self._feature.path}: step {step}: {len(data):,} bytes, not {self._nbytes:,}")
        return np.frombuffer(data, self._dtype).reshape(self._feature.shape)


def features_of(tree: Mapping[str, Any]) -> tuple[TfdsFeature, ...]:
    """Return the features of a parsed features.json.

    Errors:
        RoboCacheError: the tree is malformed, too large, or has features of a type that is not supported.
    """
    features = tuple(islice(_walk(tree, "", ()), MAX_FEATURES + 1))
    if len(features) > MAX_FEATURES:
        raise RoboCacheError(f"features.json: more than {MAX_FEATURES:,} features; check the file")
    return features


def values_of(stored: Mapping[str, Values], features: Sequence[TfdsFeature]) -> dict[str, Any]:
    """Return the values of a record that was parsed with `parse_example`, by the path of the feature.

    Numbers are arrays of all steps, (T, *shape). Texts are lists of str, images lists of views of their files' bytes,
    compressed arrays `CompressedArrays`; outside of sequences, each is one value. A feature of sequences in the steps
    is a list with an array for each step.

    Errors:
        RoboCacheError: the record lacks a feature, or does not match its shape.
    """
    found: dict[str, Any] = {}
    for feature in features:
        try:
            found[feature.path] = _value(feature, stored)
        except (KeyError, ValueError) as error:
            what = f"not in the record ({error})" if isinstance(error, KeyError) else printable(error, 100)
            raise RoboCacheError(f"{printable(feature.path, 60)}: {what}; check features.json") from None
    return found


def unlisted(stored: Mapping[str, Values], features: Sequence[TfdsFeature]) -> list[str]:
    """Return the names in a record that features.json does not list."""
    listed = {feature.path for feature in features}
    return sorted({name.partition("/ragged_")[0] for name in stored} - listed)


def _walk(node: Any, path: str, outer: tuple[int, ...], depth: int = 0) -> Iterator[TfdsFeature]:
    where = printable(path or "features.json", 60)
    if not isinstance(node, dict) or depth > MAX_DEPTH:
        raise RoboCacheError(f"{where}: not a feature of TFDS; check features.json")
    with refusing(where, advice="check features.json"):
        if "featuresDict" in node:
            for name, child in node["featuresDict"]["features"].items():
                yield from _walk(child, f"{path}/{name}" if path else name, outer, depth + 1)
        elif "sequence" in node:
            length = int(node["sequence"].get("length", -1))
            yield from _walk(node["sequence"]["feature"], path, (*outer, length), depth + 1)
        elif "image" in node:
            yield TfdsFeature(path, "image", outer, "", "none", len(outer))
        elif "text" in node:
            yield TfdsFeature(path, "text", outer, "", "none", len(outer))
        elif "classLabel" in node:
            yield TfdsFeature(path, "tensor", outer, "int64", "none", len(outer))
        elif "tensor" in node:
            yield _tensor(node["tensor"], path, outer)
        else:
            kind = printable(node.get("pythonClassName", "?"), 80)
            raise RoboCacheError(f"{where}: features of type {kind} are not read; leave the feature out")


def _tensor(stated: Mapping[str, Any], path: str, outer: tuple[int, ...]) -> TfdsFeature:
    dims = (*outer, *(int(size) for size in stated["shape"].get("dimensions", ())))
    if stated["dtype"] in ("string", "object"):
        return TfdsFeature(path, "text", dims, "", "none", len(outer))
    return TfdsFeature(
        path, "tensor", dims, _TYPES[stated["dtype"]], stated.get("encoding", "none").lower(), len(outer)
    )


def _value(feature: TfdsFeature, stored: Mapping[str, Values]) -> Any:
    if feature.path not in stored and f"{feature.path}/ragged_flat_values" in stored:
        return _ragged(feature, stored)
    values = stored[feature.path]
    if feature.kind == "tensor" and feature.encoding == "none":
        return _numbers(feature, values).reshape(feature.dims)
    if not isinstance(values, list):
        raise ValueError(f"{len(values)} numbers, not bytes")
    if feature.kind == "tensor":
        arrays = CompressedArrays(feature, values)
        return arrays if feature.levels else arrays[0]
    read = [str(data, "utf-8", "replace") for data in values] if feature.kind == "text" else values
    return read if feature.dims else read[0]


def _numbers(feature: TfdsFeature, values: Values) -> NDArray[Any]:
    if isinstance(values, list):
        if values:
            raise ValueError(f"{len(values)} strings, not numbers")
        values = np.empty(0, np.int64)
    if feature.dtype == "uint64":  # stored bit by bit as int64
        return values.view(np.uint64)
    return values.astype(feature.dtype, copy=False)


def _ragged(feature: TfdsFeature, stored: Mapping[str, Values]) -> list[NDArray[Any]]:
    """Return an array for each step, for a sequence in the steps whose length differs."""
    if feature.levels != 2 or f"{feature.path}/ragged_row_lengths_1" in stored:
        raise ValueError("sequences in sequences of the steps are not read")
    flat = _numbers(feature, stored[f"{feature.path}/ragged_flat_values"]).reshape(-1, *feature.shape)
    lengths = stored[f"{feature.path}/ragged_row_lengths_0"]
    if isinstance(lengths, list) or lengths.sum() != len(flat) or (lengths < 0).any():
        raise ValueError("the lengths of its rows do not match its values")
    return np.split(flat, np.cumsum(lengths.astype(np.int64))[:-1])


MAX_SHARDS = 100_000


@dataclass(frozen=True)
class TfdsSplit:
    """A split: its files, and the number of records of each."""

    name: str
    files: tuple[AnyPath, ...]
    lengths: tuple[int, ...]


class TfdsDataset:
    """A dataset in a folder with dataset_info.json and features.json, usually `<name>/<version>`.

    Attributes:
        name, version: of the dataset.
        features: the features of a record.
        splits: the splits by name. Their files are not opened before they are read, and may be missing.

    Errors:
        RoboCacheError: the folder has no such dataset, or its files are malformed.
    """

    def __init__(self, folder: str | AnyPath) -> None:
        self.folder = Path(folder) if isinstance(folder, str) else folder
        if not (self.folder / INFO).exists():
            raise RoboCacheError(f"{printable(self.folder)}: cannot be read; give the folder of a TFDS dataset")
        info = read_object(file_below(self.folder, INFO))
        self.features: tuple[TfdsFeature, ...] = features_of(read_object(file_below(self.folder, FEATURES)))
        with refusing(printable(self.folder), "dataset_info.json is malformed"):
            self.name, self.version = str(info["name"]), str(info["version"])
            kind = str(info.get("fileFormat", "tfrecord"))
            if kind != "tfrecord":
                raise RoboCacheError(f"{printable(self.folder)}: its files are {kind}; only tfrecord is read")
            self.splits = {split["name"]: self._split(split) for split in info["splits"]}

    def episodes(self, split: str, *, limit: int = RECORD_BYTES) -> Iterator[dict[str, Any]]:
        """Yield the values of each record of a split, in order; see `values_of`.

        Args:
            split: its name.
            limit: maximum size of a record in bytes.

        Errors:
            RoboCacheError: there is no such split; a file is missing, or has another number of records than
                dataset_info.json says; a record is damaged. The message names the file and the record.
        """
        if split not in self.splits:
            raise RoboCacheError(f"{printable(split, 40)}: no such split; there are {', '.join(self.splits)}")
        for path, length in zip(self.splits[split].files, self.splits[split].lengths, strict=True):
            if not path.exists():
                raise RoboCacheError(f"{printable(path)}: not there, but a file of split {split}; get the file")
            count = 0
            for record in read_records(file_below(self.folder, path.name), limit=limit):
                try:
                    example = values_of(parse_example(record), self.features)
                except RoboCacheError as error:
                    raise RoboCacheError(f"{printable(path)}: record {count}: {error}") from None
                yield example
                count += 1
            if count != length:
                raise RoboCacheError(f"{printable(path)}: {count:,} records, not {length:,}; get the file again")

    def _split(self, stated: dict[str, Any]) -> TfdsSplit:
        lengths = tuple(int(length) for length in stated.get("shardLengths", ()))
        if min(lengths, default=0) < 0:
            raise ValueError(f"a file of {min(lengths)} records")
        if len(lengths) > MAX_SHARDS:
            raise RoboCacheError(f"{printable(self.folder)}: more than {MAX_SHARDS:,} files; check dataset_info.json")
        template, count = stated.get("filepathTemplate"), len(lengths)
        names = [file_name(template, self.name, stated["name"], "tfrecord", index, count) for index in range(count)]
        if any(Path(name).name != name for name in names):
            raise ValueError("a file is not in the folder of the dataset")
        return TfdsSplit(str(stated["name"]), tuple(path_below(self.folder, name) for name in names), lengths)
