"""Several datasets with weights, in one layout of streams, as one map-style dataset whose order follows from a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from robocache_ros.alignments import NAMES
from robocache_ros.datasets.alignment import Unaligned
from robocache_ros.datasets.timeline_dataset import RESIZES, TimelineDataset, checked_size, resized
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.read import ROLES, DatasetError, EpisodeSource, SourceEpisode, Stream, known_names
from robocache_ros.spec import strict_yaml

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
        given, _ = strict_yaml.read_file(Path(given), "give the file of a layout")
    given_keys = _mapping("layout", given)
    known_names("layout", given_keys, ("streams", "datasets"))
    streams = {
        str(name): _stream(str(name), about) for name, about in _mapping("streams", given_keys.get("streams")).items()
    }
    datasets = _mapping("datasets", given_keys.get("datasets"))
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
    given_keys = _mapping(where, about)
    known_names(where, given_keys, _STREAM_KEYS)
    dim, role, align = given_keys.get("dim", 0), given_keys.get("role", ROLES[0]), given_keys.get("align", "")
    size, resize = given_keys.get("image_size"), str(given_keys.get("resize", RESIZES[0]))
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
    given_keys = {"from": about} if isinstance(about, str) else _mapping(where, about)
    known_names(where, given_keys, _ORIGIN_KEYS)
    if not isinstance(given_keys.get("from"), str):
        raise RoboCacheError(f"{where}.from: give the name of a stream of the dataset")
    if stream.image_size is not None:
        if len(given_keys) > 1:
            raise RoboCacheError(f"{where}: an image has no columns; give only the name of a camera")
        return Origin(given_keys["from"])
    columns = given_keys.get("columns")
    if columns is not None:
        columns = tuple(columns) if isinstance(columns, Sequence) and not isinstance(columns, str) else (columns,)
        known = all(isinstance(c, str) or (type(c) is int and 0 <= c < MAX_DIM) for c in columns)
        if not known or len(columns) != stream.dim:
            raise RoboCacheError(f"{where}.columns: give {stream.dim} indices from 0 on, or names of columns")
    scale, offset = (_numbers(f"{where}.{key}", given_keys.get(key, default), stream.dim) for key, default in _AFFINE)
    return Origin(given_keys["from"], columns, scale, offset)


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


class MappedEpisodes:
    """The episodes of a source with the streams of a layout, in its order.

    A stream that the dataset does not have is absent at every tick: `valid` is 0 and its values are 0.
    """

    def __init__(self, source: EpisodeSource, streams: tuple[CommonStream, ...], origins: Mapping[str, Origin]) -> None:
        self.source, self._streams, self._origins = source, streams, dict(origins)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files by which a change of the dataset is noticed."""
        return tuple(getattr(self.source, "files", ()))

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> SourceEpisode:
        """Return an episode.

        Errors:
            DatasetError: the dataset has no such stream or column, or its episode cannot be read.
        """
        episode = self.source.read(index)
        span = np.unique(np.array(episode.span_ns(), np.int64))
        found = {}
        for stream in self._streams:
            origin = self._origins.get(stream.name)
            made = _absent(stream, span) if origin is None else _mapped(stream, origin, episode)
            found[made.name] = made
        return replace(episode, streams=found, finite=False)  # a scale may overflow

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        return self.source.span_ns(index)


@dataclass(frozen=True)
class BlackFrames:
    """Images of a camera that a dataset does not have."""

    count: int
    size: tuple[int, int]

    def __len__(self) -> int:
        return self.count

    def frames(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return (n, H, W, 3) zeros."""
        return np.zeros((len(rows), *self.size, 3), np.uint8)


def _label(stream: CommonStream) -> str:
    if stream.image_size is not None:
        return f"vision/{stream.name}"
    return "rewards" if stream.role == "reward" else stream.name


def _absent(stream: CommonStream, stamps: NDArray[np.int64]) -> Stream:
    values: Any = np.zeros((len(stamps), stream.dim), np.float32)
    if stream.image_size is not None:
        values = BlackFrames(len(stamps), stream.image_size)
    none = np.zeros(len(stamps), np.uint8)
    return Stream(
        _label(stream), stamps, values, False, stream.role, stream.align, valid=none, age_ns=none.astype(np.int64)
    )


def _mapped(stream: CommonStream, origin: Origin, episode: SourceEpisode) -> Stream:
    where = f"{episode.source}: {printable(origin.stream, 40)}"
    given = episode.streams.get(origin.stream)
    if given is None:
        known = printable(", ".join(episode.streams), 80)
        raise DatasetError(f"{where}: no such stream; there are {known}; correct the layout")
    align = stream.align or given.align
    if stream.image_size is not None:
        if not given.is_image or given.modality != "vision":
            raise DatasetError(f"{where}: not a camera; correct the layout")
        made = resized(given, stream.image_size, stream.resize, episode.source)
        return replace(made, name=_label(stream), role=stream.role, align=align)
    if given.is_image:
        raise DatasetError(f"{where}: images, and the layout has {stream.dim} columns; correct the layout")
    assert isinstance(given.values, np.ndarray)
    columns = _columns(origin, given, stream.dim, where)
    scale, offset = np.array(origin.scale, np.float32), np.array(origin.offset, np.float32)
    values = given.values[:, columns] * scale + offset
    return replace(given, name=_label(stream), values=np.ascontiguousarray(values), role=stream.role, align=align)


def _columns(origin: Origin, given: Stream, dim: int, where: str) -> list[int]:
    """Return the indices of the columns of a stream of numbers."""
    assert isinstance(given.values, np.ndarray)
    width = given.values.shape[1]
    if origin.columns is None and width != dim:
        raise DatasetError(f"{where}: {width} columns, and the layout has {dim}; give columns in the layout")
    found = []
    for column in range(width) if origin.columns is None else origin.columns:
        index = column
        if isinstance(column, str):
            if column not in given.columns:
                known = printable(", ".join(given.columns), 60) or "none"
                raise DatasetError(f"{where}: no column {printable(column, 40)}; its names are {known}; use an index")
            index = given.columns.index(column)
        if not isinstance(index, int) or index >= width:
            raise DatasetError(f"{where}: no column {index}, it has {width}; correct the layout")
        found.append(index)
    return found


MAX_SAMPLES = 100_000_000


class WeightedMixture(Dataset[dict[str, Any]]):
    """A mixture: each sample of an epoch is drawn from a dataset with a probability in proportion to its weight.

    The samples of a dataset are used in a random order, all of them before one is used again. The order follows from
    `seed` and the epoch.

    Args:
        datasets: by name.
        weights: of each dataset: its probability is weight / sum of weights.
        layout: the common layout of all samples, a YAML file or what it contains; see `load_layout`. Its `image_size`
            replaces that of the datasets. None: the layout of each dataset.
        samples: number of samples of an epoch; None: the number of samples of all datasets.
        seed: of the order.

    Errors:
        RoboCacheError: a weight is missing or not positive, a dataset is empty, rates differ, or the layout is wrong.
    """

    def __init__(
        self,
        datasets: Mapping[str, TimelineDataset],
        weights: Mapping[str, float],
        *,
        layout: str | Path | Mapping[str, Any] | None = None,
        samples: int | None = None,
        seed: int = 0,
    ) -> None:
        for name, dataset in datasets.items():
            weight = weights.get(name, 0.0)
            if not (0 < weight < math.inf and len(dataset)):
                raise RoboCacheError(
                    f"{printable(name, 40)}: weight {weight!r}, {len(dataset)} samples; give a positive weight and data"
                )
        rates = {dataset.rate_hz: name for name, dataset in datasets.items()}
        if len(rates) > 1:
            found = ", ".join(f"{printable(name, 40)} {rate_hz} Hz" for rate_hz, name in list(rates.items())[:2])
            raise RoboCacheError(f"datasets: ticks of different rates, {found}; open all with one target_hz")
        count = sum(len(dataset) for dataset in datasets.values()) if samples is None else samples
        if not datasets or not 0 < count <= MAX_SAMPLES:
            raise RoboCacheError(f"samples: {count:,} of {len(datasets)} datasets; 1 to {MAX_SAMPLES:,} are possible")
        self.layout = None if layout is None else load_layout(layout)
        if self.layout is not None:
            datasets = {name: _in_layout(dataset, name, self.layout) for name, dataset in datasets.items()}
        self.datasets, self.names = tuple(datasets.values()), tuple(datasets)
        self._shares = np.array([weights[name] for name in self.names], np.float64)
        self._shares /= self._shares.sum()
        self._count, self._seed = count, seed
        self.set_epoch(0)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        dataset, sample = self.place(index)
        return {**self.datasets[dataset][sample], "dataset": self.names[dataset]}

    def undecoded(self, index: int) -> dict[str, Any]:
        """Return a sample as `TimelineDataset.undecoded` does, and the name of its dataset."""
        dataset, sample = self.place(index)
        return {**self.datasets[dataset].undecoded(sample), "dataset": self.names[dataset]}

    def unaligned(self, index: int) -> Unaligned:
        """Return a sample before its streams are aligned.

        Errors:
            DatasetError: a file or a record is missing or damaged.
        """
        dataset, sample = self.place(index)
        found = self.datasets[dataset].unaligned(sample)
        return replace(found, texts={**found.texts, "dataset": self.names[dataset]})

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of an epoch."""
        random = np.random.default_rng((self._seed, epoch))
        self._dataset = random.choice(len(self.datasets), self._count, p=self._shares).astype(np.int32)
        self._sample = np.empty(self._count, np.int64)
        for index, dataset in enumerate(self.datasets):
            places = np.flatnonzero(self._dataset == index)
            size = len(dataset)
            rounds = [random.permutation(size) for _ in range(-(-len(places) // size))]
            self._sample[places] = np.concatenate(rounds)[: len(places)] if rounds else []

    def place(self, index: int) -> tuple[int, int]:
        """Return the dataset of a sample, and the index of the sample in it."""
        if not -self._count <= index < self._count:
            raise IndexError(f"index {index} of {self._count} samples")
        return int(self._dataset[index]), int(self._sample[index])


def _in_layout(dataset: TimelineDataset, name: str, layout: CommonLayout) -> TimelineDataset:
    if name not in layout.origins:
        known = printable(", ".join(layout.origins), 80)
        raise RoboCacheError(f"datasets.{printable(name, 40)}: not in the layout, which has {known}; add it")
    made = dataset.of_source(MappedEpisodes(dataset.source, layout.streams, layout.origins[name]))
    made.image_size = None  # that of each camera of the layout, which resizes the stored images once
    return made
