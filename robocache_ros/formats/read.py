"""What a reader gives: the episodes of a dataset with their streams; and names that several formats share."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec.keys import suggestion
from robocache_ros.storage.paths import AnyPath
from robocache_ros.units import NS_PER_S
from robocache_ros.untrusted_files import DatasetError as DatasetError
from robocache_ros.untrusted_files import DatasetFile, open_file

STATE, ACTION = "observation.state", "action"
IMAGES = "observation.images."  # and the name of a stream, as for all that end with a point
# A policy may read the values. The others are not below `observation.`, so that a policy does not use them as input.
WINDOW, MASK, AGES = "observation.window.", "robocache.mask.", "robocache.sample_age_ms."
# What is known of each tick: its time, and by stream the stamp, how its value was made, and the age of the sample.
TICK_COLUMNS = ("tick_ns", "stamp_ns", "valid", "age_ns")
BY_STREAM = TICK_COLUMNS[1:]
TICK, STAMP, VALID, AGE = (f"robocache.{name}" for name in TICK_COLUMNS)
PROVENANCE = "robocache.json"
STATES = {"aligned": 1, "held": 2, "invalid": 0}  # of a value at a tick: its `valid`


MAX_EPISODES = 10_000_000
MAX_STEPS = 1_000_000  # of an episode: five hours at 50 Hz
MIN_RATE_HZ, MAX_RATE_HZ = 0.01, 100_000
MAX_VECTOR_BYTES = 1 << 30  # of the numbers of a stream of an episode
MAX_IMAGE_BYTES = 8 << 30  # of the images of a stream in a sample
ROLES = ("observation", "action", "reward")
_CHECKED_AT_ONCE = 1 << 15  # numbers; the results for them stay in the cache of a core

# What the contents of damaged files raise where they are taken for what they should be.
MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)


@contextmanager
def refusing(
    where: str,
    what: str = "malformed",
    advice: str = "get the file again",
    errors: tuple[type[Exception], ...] = MALFORMED,
) -> Iterator[None]:
    """Turn errors of reading into a `DatasetError` of `where`, with `what`, the reason and `advice`."""
    try:
        yield
    except DatasetError:
        raise
    except RoboCacheError as error:
        raise DatasetError(str(error)) from None
    except errors as error:
        reason = "not there" if isinstance(error, FileNotFoundError) else f"{what} ({printable(error, 60)})"
        raise DatasetError(f"{where}: {reason}; {advice}") from None


class LazyFrames(Protocol):
    """Images or voxels that are read when they are asked for, such as the frames of a video."""

    def __len__(self) -> int: ...

    def frames(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the (n, H, W, 3) uint8 images of rising rows, or the (n, ...) depth images or voxels.

        Errors:
            DatasetError: an image is damaged or missing.
        """


Values: TypeAlias = "NDArray[Any] | Sequence[bytes] | LazyFrames"


@dataclass(frozen=True)
class Stream:
    """One modality of an episode: K samples.

    Attributes:
        name: `vision/<camera>` for images, `depth/<camera>`, `voxels/<name>`; `proprio`, `actions`, `rewards`, or the
            dataset's own name.
        stamps_ns: (K,) int64, rising.
        values: (K, D) numbers; images as (K, H, W, 3) uint8, as K files of jpeg or png, or as `LazyFrames`.
        measured: whether the stamps were measured; else they are nominal, the index of the step over the rate.
        role: observation, action or reward.
        align: the alignment to use if the user chooses none; empty: linear for observations, hold for the others.
        max_gap_ns, max_age_ns: limits of the alignment; None: no limit.
        columns: names of the D columns; empty if the dataset has none.
        valid, age_ns: (K,) uint8 and int64, of samples that an export of this project aligned: how each was made, and
            its age. A sample with valid 0 is absent.
    """

    name: str
    stamps_ns: NDArray[np.int64]
    values: Values
    measured: bool
    role: str = "observation"
    align: str = ""
    max_gap_ns: int | None = None
    max_age_ns: int | None = None
    valid: NDArray[np.uint8] | None = None
    age_ns: NDArray[np.int64] | None = None
    columns: tuple[str, ...] = ()

    @property
    def is_image(self) -> bool:
        """Whether the samples are images, depth images or voxels: they are copied, and never blended."""
        return not isinstance(self.values, np.ndarray) or self.values.ndim == 4

    @property
    def modality(self) -> str:
        """The modality of an image: vision, depth or voxels."""
        return modality_of(self.name)


IMAGE_MODALITIES = ("vision", "depth", "voxels")


def modality_of(name: str) -> str:
    """Return the modality of a stream of images: vision, depth or voxels."""
    first = name.partition("/")[0]
    return first if first in ("depth", "voxels") else "vision"


@dataclass(frozen=True)
class SourceEpisode:
    """One episode of a dataset.

    Attributes:
        streams: by name, in the order of their columns.
        task: the instruction; empty if the dataset has none.
        dataset: name of the dataset.
        source: file and record, for errors.
        success: whether the task succeeded; None: not known.
        finite: whether the reader has found all numbers of its vectors finite, as `numbers` does.
    """

    streams: dict[str, Stream] = field(repr=False)
    task: str
    dataset: str
    source: str
    success: bool | None = None
    finite: bool = False

    def span_ns(self) -> tuple[int, int]:
        """Return the first and the last stamp."""
        stamps = [stream.stamps_ns for stream in self.streams.values()]
        return min(int(each[0]) for each in stamps), max(int(each[-1]) for each in stamps)

    @cached_property
    def not_finite(self) -> str | None:
        """The stream of vectors that has a number that is NaN or infinite; None: all are finite. Looked for once."""
        for name, stream in self.streams.items() if not self.finite else ():
            values = stream.values
            if stream.is_image or not isinstance(values, np.ndarray) or values.dtype.kind != "f":
                continue
            if not all_finite(np.ascontiguousarray(values)):
                return name
        return None


class EpisodeSource(Protocol):
    """The episodes of a dataset. It can be pickled: files are opened on use, in each process.

    It may have `files`, by which a change of the dataset is noticed, and `export`, the `ExportColumns` of an export of
    this project.

    Errors:
        DatasetError: a file or a record is missing or damaged; the message names it.
    """

    def __len__(self) -> int:
        """Return the number of episodes."""

    def read(self, index: int) -> SourceEpisode:
        """Return an episode. Images are not decoded."""

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode, without reading its images where the format allows it."""


def nominal_stamps(count: int, rate_hz: float) -> NDArray[np.int64]:
    """(count,) int64 stamps of steps at a nominal rate, from 0: floor(index * 1e9 / rate), as the ticks of a grid."""
    rate = _rate(rate_hz)
    return np.arange(count, dtype=np.int64) * (NS_PER_S * rate.denominator) // rate.numerator


def nominal_span(count: int, rate_hz: float) -> tuple[int, int]:
    """Return the first and the last of `nominal_stamps`."""
    rate = _rate(rate_hz)
    return 0, max(count - 1, 0) * NS_PER_S * rate.denominator // rate.numerator


def _rate(rate_hz: float) -> Fraction:
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:  # also if it is NaN
        raise DatasetError(
            f"rate: {printable(rate_hz, 20)} Hz is not from {MIN_RATE_HZ} to {MAX_RATE_HZ}; give the dataset's"
        )
    return Fraction(rate_hz).limit_denominator(1001)  # 30000/1001 too; stamps of `MAX_STEPS` stay within int64


def numbers(values: NDArray[Any], where: str) -> NDArray[np.float32]:
    """Return (K, D) float32 numbers of (K, ...) values of any numeric dtype.

    Errors:
        DatasetError: a number is NaN or infinite, also after the conversion; the message names its row and column.
    """
    if not len(values):
        raise DatasetError(f"{where}: 0 steps; leave the episode out")
    if values.dtype.kind not in "fiub":
        raise DatasetError(f"{where}: {values.dtype} is not numeric; leave the feature out of the mapping")
    table: NDArray[np.float32] = values.reshape(len(values), -1)
    if table.dtype != np.float32 or not (table.flags.c_contiguous and table.flags.writeable):
        with np.errstate(over="ignore"):
            table = np.require(table, np.float32, ["C", "W"])
    if not all_finite(table):
        row, column = (int(each) for each in np.argwhere(~np.isfinite(table))[0])
        raise DatasetError(
            f"{where}: row {row}, column {column} is not finite; repair the file or leave the episode out"
        )
    return table


def all_finite(values: NDArray[np.floating[Any]]) -> bool:
    """Whether no number of an array in one piece is NaN or infinite, in one pass over the memory."""
    if values.size <= _CHECKED_AT_ONCE:
        return bool(np.count_nonzero(np.isfinite(values)) == values.size)  # `all` takes twice the time to start
    flat = values.reshape(-1)
    parts = (flat[start : start + _CHECKED_AT_ONCE] for start in range(0, len(flat), _CHECKED_AT_ONCE))
    return all(map(all_finite, parts))


def check_image_bytes(count: int, shape: tuple[int, ...], where: str) -> None:
    """Refuse images that would take too much memory."""
    if count * math.prod(shape) > MAX_IMAGE_BYTES:
        size = "x".join(map(str, shape[:2]))
        limit = MAX_IMAGE_BYTES >> 30
        raise DatasetError(f"{where}: {count:,} images of {size} are more than {limit} GiB; choose windows")


def checked(episode: SourceEpisode) -> SourceEpisode:
    """Return the episode if it is well formed.

    Errors:
        DatasetError: it has no samples, too many, or a stream whose stamps do not rise or do not match its values.
    """
    if not episode.streams:
        raise DatasetError(f"{episode.source}: no stream of the chosen modalities; choose others")
    for stream in episode.streams.values():
        stamps, count = stream.stamps_ns, len(stream.stamps_ns)
        if not 0 < count <= MAX_STEPS:
            fault = f"{count:,} steps; 1 to {MAX_STEPS:,} are read"
        elif len(stream.values) != count:
            fault = f"{len(stream.values):,} values for {count:,} steps; check the file"
        elif np.count_nonzero(stamps[1:] > stamps[:-1]) < count - 1:
            fault = "its stamps do not rise; check the file"
        else:
            continue
        raise DatasetError(f"{episode.source}: {printable(stream.name, 40)}: {fault}")
    return episode


def known_names(where: str, given: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the names that are given."""
    for name in given:
        if name not in known:
            meant = suggestion(name, known) or "choose one of them"
            listed = printable(", ".join(known), 80) or "none"
            raise RoboCacheError(f"{where}: {printable(name, 40)!r} is not one of {listed}; {meant}")
    return tuple(given)


class ChainedEpisodes:
    """The episodes of several sources, one source after the other."""

    def __init__(self, sources: Sequence[EpisodeSource]) -> None:
        self.sources = tuple(sources)
        self._ends = list(accumulate(len(source) for source in self.sources))

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files by which a change of the dataset is noticed."""
        return tuple(file for source in self.sources for file in getattr(source, "files", ()))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, index: int) -> SourceEpisode:
        """Return an episode."""
        source, index = self._place(index)
        return source.read(index)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        source, index = self._place(index)
        return source.span_ns(index)

    def _place(self, index: int) -> tuple[EpisodeSource, int]:
        which = bisect_right(self._ends, index)
        return self.sources[which], index - (self._ends[which - 1] if which else 0)


JSON_BYTES = 512 << 20  # of the lines that list the episodes of a large dataset


def read_object(path: DatasetFile) -> dict[str, Any]:
    """Return the object in a JSON file."""
    return parse_object(limited_bytes(path, printable(path)), printable(path))


def read_objects(path: DatasetFile) -> list[dict[str, Any]]:
    """Return the objects in a file with one JSON object per line."""
    lines = enumerate(limited_bytes(path, printable(path)).splitlines(), start=1)
    return [parse_object(line, f"{printable(path)}: line {number}") for number, line in lines if line.strip()]


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Return a JSON object."""
    found = parse_json(text, where)
    if not isinstance(found, dict):
        raise DatasetError(f"{where}: not a JSON object; get the file again")
    return found


def parse_json(text: str | bytes, where: str) -> Any:
    """Return a JSON value; bytes may begin with a byte order mark."""
    with refusing(where, "not JSON", errors=(ValueError, RecursionError)):
        return json.loads(text)


def limited_bytes(path: DatasetFile, where: str, max_bytes: int = JSON_BYTES) -> bytes:
    """Return the contents of a file of at most `max_bytes`."""
    with refusing(where, "cannot be read", errors=(OSError,)), open_file(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise DatasetError(f"{where}: larger than {max_bytes >> 20} MiB; get the file again")
    return data
