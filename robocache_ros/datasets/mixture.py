"""Several datasets with weights, in one layout of streams, as one map-style dataset whose order follows from a seed."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from robocache_ros.alignments import NAMES
from robocache_ros.datasets.alignment import Unaligned
from robocache_ros.datasets.timeline_dataset import MAX_SIDE, RESIZES, TimelineDataset, resized
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.read import ROLES, DatasetError, EpisodeSource, SourceEpisode, Stream
from robocache_ros.spec import keys, strict_yaml

MAX_STREAMS, MAX_DIM, MAX_DATASETS = 1024, 4096, 10_000
_stream_name = keys.text("the name of a stream")


def _column(raw: Any) -> int | str:
    found: int | str = (keys.text("a name") if isinstance(raw, str) else keys.integer(0, MAX_DIM - 1)).read(raw)
    return found


_numbers = keys.one_or_many(keys.number(-sys.float_info.max, sys.float_info.max))
_columns_type = keys.one_or_many(keys.KeyType("an index or a name", _column, {"type": ["integer", "string"]}))


@dataclass(frozen=True)
class CommonStream:
    """A stream of the layout: `dim` columns, or images of `image_size`."""

    name: str
    dim: int = keys.key(keys.integer(1, MAX_DIM), "number of columns", default=0)
    role: str = keys.key(keys.choice(*ROLES), "what it is for", default=ROLES[0])
    align: str = keys.key(keys.choice(*NAMES), "how it is aligned, else as in the dataset", default="")
    image_size: tuple[int, int] | None = keys.key(
        keys.many(keys.integer(1, MAX_SIDE), length=2), "height and width of images", default=None
    )
    resize: str = keys.key(keys.choice(*RESIZES), "how images are resized", default=RESIZES[0])

    def __post_init__(self) -> None:
        if (self.image_size is None) == (self.dim == 0):
            raise keys.refuse(f"give either dim, from 1 to {MAX_DIM}, or image_size")
        if self.role == "reward" and self.dim != 1:
            raise keys.refusal("role", "a reward is one number; give dim 1, or another role")


@dataclass(frozen=True)
class Origin:
    """Where a stream of the layout comes from in a dataset: value = column * scale + offset, in float32."""

    stream: str  # name of the dataset's stream: the key `from`
    columns: tuple[int | str, ...] | None = keys.key(
        _columns_type, "indices of columns, or their names where the dataset has names; by default all", default=None
    )
    scale: tuple[float, ...] = keys.key(_numbers, "of all columns, or of each", default=(1.0,))
    offset: tuple[float, ...] = keys.key(_numbers, "of all columns, or of each", default=(0.0,))


def _origin(dataset_stream: Any) -> Origin:
    given = {"from": dataset_stream} if isinstance(dataset_stream, str) else dataset_stream
    if not isinstance(given, Mapping) or "from" not in given:
        raise keys.refuse("missing; give the name of a stream of the dataset", ("from",))
    others = {name: value for name, value in given.items() if name != "from"}
    return keys.read(Origin, others, stream=_stream_name.read(given["from"]))


_streams_by_name = keys.by_name(
    "streams by name",
    "name: {dim: 7}",
    lambda name, given: keys.read(CommonStream, given, name=_stream_name.read(name)),
    keys.object_schema(CommonStream),
    most=MAX_STREAMS,
)
_origins = keys.converted(
    keys.by_name("origins by stream", "name: stream", lambda name, given: (name, _origin(given)), {}, least=0), dict
)
_origins_by_dataset = keys.converted(
    keys.by_name(
        "datasets by name",
        "name: {stream: stream}",
        lambda name, given: (name, _origins.read(given)),
        {},
        least=0,
        most=MAX_DATASETS,
    ),
    dict,
)


@dataclass(frozen=True)
class CommonLayout:
    """The streams of every sample, and the origin of each of them by dataset. A stream without one is never valid."""

    streams: tuple[CommonStream, ...] = keys.key(_streams_by_name, "the streams of every sample")
    datasets: dict[str, dict[str, Origin]] = keys.key(_origins_by_dataset, "where they are in each dataset")

    def __post_init__(self) -> None:
        streams, problems = {stream.name: stream for stream in self.streams}, keys.Problems()
        for dataset, origins in self.datasets.items():
            for name, origin in origins.items():
                with problems.below("datasets", dataset, name):
                    _check_origin(streams.get(name), origin)
        problems.raise_any()


def _check_origin(stream: CommonStream | None, origin: Origin) -> None:
    if stream is None:
        raise keys.refuse("not a stream of the layout; add it to streams, or leave it out")
    if stream.image_size is not None and origin != Origin(origin.stream):
        raise keys.refuse("an image has no columns; give only the name of a camera")
    if origin.columns is not None and len(origin.columns) != stream.dim:
        raise keys.refusal("columns", f"give {stream.dim} indices from 0 on, or names of columns")
    for name in ("scale", "offset"):
        if (count := len(getattr(origin, name))) not in (1, max(stream.dim, 1)):
            raise keys.refusal(name, f"{count} numbers for {stream.dim} columns; give one, or one for each")


def load_layout(given: str | Path | Mapping[str, Any]) -> CommonLayout:
    """Read a layout.

    Args:
        given: a YAML file, or what it contains:
            `streams`: by name `{dim, role, align}`, or for a camera `{image_size, resize, align}`;
            `datasets`: by dataset and stream the name of the dataset's stream, or `{from, columns, scale, offset}`.

    Errors:
        RoboCacheError: the file cannot be read, or something in it is wrong; the message has a line for each error.
    """
    if isinstance(given, Mapping):
        return keys.read(CommonLayout, given)
    contents, place = strict_yaml.read_file(Path(given), "give the file of a layout")
    try:
        return keys.read(CommonLayout, contents)
    except keys.SpecError as error:
        raise keys.SpecError(error.problems, place) from None


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
    if name not in layout.datasets:
        known = printable(", ".join(layout.datasets), 80)
        raise RoboCacheError(f"datasets.{printable(name, 40)}: not in the layout, which has {known}; add it")
    made = dataset.of_source(MappedEpisodes(dataset.source, layout.streams, layout.datasets[name]))
    made.image_size = None  # that of each camera of the layout, which resizes the stored images once
    return made
