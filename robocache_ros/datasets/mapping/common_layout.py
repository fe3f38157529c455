"""The common layout of a mixture: its streams, and from which columns of each dataset they come."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robocache_ros.alignments import NAMES
from robocache_ros.datasets.episode_source import ROLES, known_names
from robocache_ros.datasets.mapping.resized_frames import RESIZES, checked_size
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec import strict_yaml
from robocache_ros.text_file import read_text

MAX_STREAMS, MAX_DIM, MAX_DATASETS = 1024, 4096, 10_000
_STREAM_KEYS = ("dim", "role", "align", "image_size", "resize")
_ORIGIN_KEYS = ("from", "columns", "scale", "offset")


@dataclass(frozen=True)
class CommonStream:
    """A stream of the layout: `dim` columns, or images of `image_size`."""

    name: str
    dim: int = 0
    role: str = "observation"
    align: str = ""
    image_size: tuple[int, int] | None = None
    resize: str = RESIZES[0]


@dataclass(frozen=True)
class Origin:
    """Where a stream of the layout comes from in a dataset: value = column * scale + offset, in float32.

    Attributes:
        stream: name of the dataset's stream.
        columns: their indices, or their names where the dataset has names; None: all.
        scale, offset: of each column.
    """

    stream: str
    columns: tuple[int | str, ...] | None = None
    scale: tuple[float, ...] = (1.0,)
    offset: tuple[float, ...] = (0.0,)


@dataclass(frozen=True)
class CommonLayout:
    """The streams of every sample, and the origin of each of them by dataset. A stream without one is never valid."""

    streams: tuple[CommonStream, ...]
    origins: dict[str, dict[str, Origin]]


def load_layout(given: str | Path | Mapping[str, Any]) -> CommonLayout:
    """Read a layout.

    Args:
        given: a YAML file, or what it contains:
            `streams`: by name `{dim, role, align}`, or for a camera `{image_size, resize, align}`;
            `datasets`: by dataset and stream the name of the dataset's stream, or `{from, columns, scale, offset}`.

    Errors:
        RoboCacheError: the file cannot be read, or something in it is wrong; the message names it.
    """
    if not isinstance(given, Mapping):
        path = Path(given)
        where = printable(path)
        try:
            given = strict_yaml.load(read_text(path, "give the file of a layout", strict_yaml.MAX_BYTES)).value
        except strict_yaml.YamlError as error:
            raise RoboCacheError(f"{where}: line {error.line}: {error}; correct it") from None
    told = _mapping("layout", given)
    known_names("layout", told, ("streams", "datasets"))
    streams = {str(name): _stream(str(name), about) for name, about in _mapping("streams", told.get("streams")).items()}
    datasets = _mapping("datasets", told.get("datasets"))
    if not 0 < len(streams) <= MAX_STREAMS or len(datasets) > MAX_DATASETS:
        raise RoboCacheError(f"layout: {len(streams):,} streams of {len(datasets):,} datasets; check the layout")
    origins = {}
    for dataset, mapped in datasets.items():
        where = f"datasets.{printable(dataset, 40)}"
        origins[str(dataset)] = {
            str(name): _origin(f"{where}.{printable(name, 40)}", streams.get(str(name)), about)
            for name, about in _mapping(where, mapped).items()
        }
    return CommonLayout(tuple(streams.values()), origins)


def _stream(name: str, about: Any) -> CommonStream:
    where = f"streams.{printable(name, 40)}"
    told = _mapping(where, about)
    known_names(where, told, _STREAM_KEYS)
    dim, role, align = told.get("dim", 0), told.get("role", ROLES[0]), told.get("align", "")
    size, resize = told.get("image_size"), str(told.get("resize", RESIZES[0]))
    if (size is None) == (dim == 0) or not (isinstance(dim, int) and 0 <= dim <= MAX_DIM):
        raise RoboCacheError(f"{where}: give either dim, from 1 to {MAX_DIM}, or image_size")
    if role not in ROLES or (role == "reward" and dim != 1):
        raise RoboCacheError(f"{where}.role: {printable(role, 20)!r} is not one of {', '.join(ROLES)} (of dim 1)")
    if align and align not in NAMES:
        raise RoboCacheError(f"{where}.align: {printable(align, 20)!r} is not one of {', '.join(NAMES)}")
    return CommonStream(name, dim, role, align, size and checked_size(f"{where}.image_size", size, resize), resize)


def _origin(where: str, stream: CommonStream | None, about: Any) -> Origin:
    if stream is None:
        raise RoboCacheError(f"{where}: not a stream of the layout; add it to streams, or leave it out")
    told = {"from": about} if isinstance(about, str) else _mapping(where, about)
    known_names(where, told, _ORIGIN_KEYS)
    if not isinstance(told.get("from"), str):
        raise RoboCacheError(f"{where}.from: give the name of a stream of the dataset")
    if stream.image_size is not None:
        if len(told) > 1:
            raise RoboCacheError(f"{where}: an image has no columns; give only the name of a camera")
        return Origin(told["from"])
    columns = told.get("columns")
    if columns is not None:
        columns = tuple(columns) if isinstance(columns, Sequence) and not isinstance(columns, str) else (columns,)
        known = all(isinstance(c, str) or (type(c) is int and 0 <= c < MAX_DIM) for c in columns)
        if not known or len(columns) != stream.dim:
            raise RoboCacheError(f"{where}.columns: give {stream.dim} indices from 0 on, or names of columns")
    scale, offset = (_numbers(f"{where}.{key}", told.get(key, default), stream.dim) for key, default in _AFFINE)
    return Origin(told["from"], columns, scale, offset)


_AFFINE = (("scale", 1.0), ("offset", 0.0))


def _numbers(where: str, value: Any, dim: int) -> tuple[float, ...]:
    values = list(value) if isinstance(value, (list, tuple)) else [value] * dim
    if len(values) != dim or not all(type(each) in (int, float) and math.isfinite(each) for each in values):
        raise RoboCacheError(f"{where}: {printable(value, 40)} is neither a number nor {dim} numbers")
    return tuple(float(each) for each in values)


def _mapping(where: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise RoboCacheError(f"{where}: {printable(value, 40)} is not a mapping; see the example in the guide")
    return value
