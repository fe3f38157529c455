"""What checks share: findings, values, statistics, and the rows of an export compared with its spec."""

from __future__ import annotations

import io
import lzma
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.alignments import alignment
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.formats.read import MALFORMED, TICK_COLUMNS, limited_bytes, parse_json, parse_object
from robocache_ros.formats.statistics import Stats, by_column
from robocache_ros.spec import TF_TYPE, FusionSpec, Layout, StreamSpec, load_spec
from robocache_ros.units import NS_PER_S
from robocache_ros.untrusted_files import DatasetError, DatasetFile, file_below

MAX_FINDINGS = 500  # further findings are counted
_ARCHIVE_ERRORS = (EOFError, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, zlib.error)
_LIBRARY_ERRORS = {"pyarrow": "ArrowException", "av": "FFmpegError"}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    where: str  # a file of the dataset, and the part of it
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass
class Findings:
    """Collects what a validator finds in one dataset."""

    dataset: Path  # its folder, or its file
    title: str  # the format
    decode: bool = False  # whether to decode every image, which takes as long as reading the dataset once
    found: list[Finding] = field(default_factory=list)  # what is wrong; at most MAX_FINDINGS
    unchecked: list[str] = field(default_factory=list)  # what could not be checked, with the reason
    counted: Counter[str] = field(default_factory=Counter)  # what was checked, as numbers of things
    more: int = 0  # findings beyond MAX_FINDINGS

    def add(self, where: str, what: str) -> None:
        """Report something that is wrong."""
        if len(self.found) < MAX_FINDINGS:
            self.found.append(Finding(printable(where, 120), printable(what, 160)))
        else:
            self.more += 1

    def skip(self, what: str) -> None:
        """Report something that cannot be checked."""
        text = printable(what, 180)
        if text not in self.unchecked:
            self.unchecked.append(text)

    def check(self, correct: bool, where: str, what: str) -> bool:
        """Report `what` unless `correct`; return `correct`."""
        if not correct:
            self.add(where, what)
        return correct

    def report_rows(self, off: NDArray[np.bool_], where: str, what: Callable[[int], str]) -> None:
        """Report what is wrong in the first of the rows that are `off`, (T,), and in how many."""
        if off.any():
            row = int(off.argmax())
            self.add(where, f"{what(row)}, wrong in {int(off.sum())} rows")

    def check_listed(self, pattern: str, listed: Collection[str], what: str) -> None:
        """Report files or folders that match a pattern and are not `listed`, by their names in the dataset."""
        for path in sorted(self.dataset.glob(pattern)):
            name = path.relative_to(self.dataset).as_posix()
            self.check(name in listed, name, what)

    @contextmanager
    def reading(self, where: str) -> Iterator[None]:
        """Turn an error of reading a file into a finding."""
        try:
            yield
        except Exception as error:
            libraries = (getattr(sys.modules[name], of) for name, of in _LIBRARY_ERRORS.items() if name in sys.modules)
            if not isinstance(error, (*MALFORMED, *_ARCHIVE_ERRORS, *libraries)):
                raise
            text = str(error).removeprefix(f"{where}: ")
            self.add(where, text if isinstance(error, RoboCacheError) else f"cannot be read ({printable(error, 100)})")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "dataset": str(self.dataset),
            "format": self.title,
            "findings": [{"where": finding.where, "what": finding.what} for finding in self.found],
            "more_findings": self.more,
            "not_checked": self.unchecked,
            "checked": dict(self.counted),
        }


@dataclass(frozen=True)
class FormatCheck:
    """Checks the datasets of a format, as a `Validator` does."""

    title: str
    recognizes: Callable[[Path], bool]
    check: Callable[[Findings], None]


def file_in(dataset: Path, name: str | Path) -> DatasetFile:
    """Return the path of a file that the dataset, a folder or this file, names; see `file_below`.

    Errors:
        RoboCacheError: the file is missing, not in the dataset, or not a regular file.
    """
    where = printable(name, 120)
    try:
        return file_below(dataset, name)
    except DatasetError as error:
        text = str(error).partition(": ")[2]
        if text.startswith("not there"):
            text = "is missing"
        elif text.startswith("not in the folder"):
            text = "is outside the dataset; correct the path"
        raise RoboCacheError(f"{where}: {text}") from None


def files_in(dataset: Path, pattern: str) -> list[str]:
    """Return the names of the files of a dataset that match a pattern, sorted, for `file_in`."""
    return [path.relative_to(dataset).as_posix() for path in sorted(dataset.glob(pattern))]


def read_json(dataset: Path, name: str) -> Any:
    """Return the value of a JSON file."""
    return parse_json(limited_bytes(file_in(dataset, name), name), name)


def read_lines(dataset: Path, name: str) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object per line."""
    lines = enumerate(limited_bytes(file_in(dataset, name), name).splitlines(), start=1)
    return [parse_object(line, f"{name}: line {number}") for number, line in lines]


OF_WINDOW = ("sample_age_ms", "mask")  # columns of a window, before a point and its name
CLOCK_STARTS_NS = 3600 * NS_PER_S  # a stamp in the first hour of a clock: it is none of the time since 1970


def check_finite(findings: Findings, where: str, values: NDArray[Any], name: str = "") -> None:
    """Report NaN and infinity in (T, ...) values."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        findings.add(where, f"{name}NaN or infinite in {int(bad.sum())} rows, the first is row {bad.argmax()}")


def check_ticks(findings: Findings, where: str, ticks: NDArray[np.int64], rate_hz: int) -> None:
    """Report ticks of an episode that are not on the grid, or that are not consecutive."""
    if not len(ticks):
        return
    first = (int(ticks[0]) * rate_hz + 500_000_000) // 10**9
    grid = [(first + k) * 10**9 // rate_hz for k in range(len(ticks))]  # Python integers do not overflow
    off = ticks != np.array(grid, np.int64)
    text = f"{int(off.sum())} ticks are not on the grid of {rate_hz} Hz, the first is row {off.argmax()}"
    findings.check(not off.any(), where, text)


def check_first_and_last(findings: Findings, where: str, flags: Mapping[str, NDArray[np.bool_]]) -> None:
    """Report is_first and is_last that are not at the ends of an episode."""
    for name, at in (("is_first", 0), ("is_last", -1)):
        if name in flags:
            steps = np.flatnonzero(flags[name])
            wanted = np.arange(len(flags[name]))[at:][:1]
            text = f"{name} is true at steps {steps[:5].tolist()}; it must be true at {wanted.tolist()} only"
            findings.check(np.array_equal(steps, wanted), where, text)


def image_size(data: bytes, *, decode: bool) -> tuple[int, int]:
    """Return height and width of an encoded image; decode it on request.

    Errors:
        ValueError: it is not an image, is damaged or is too large.
    """
    pillow = need("PIL.Image", "export")
    try:
        with pillow.open(io.BytesIO(data)) as image:
            if decode:
                image.load()
            return image.height, image.width
    except (OSError, SyntaxError, pillow.DecompressionBombError) as error:
        raise ValueError(str(error)) from None


def stamps_disagree(stamps: NDArray[np.int64], valid: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Return where a stamp of 0, which stands for no value, and `valid` disagree.

    The first sample of a recording whose clock starts at 0 has this stamp too.
    """
    starts_at_0 = bool(((stamps > 0) & (stamps < CLOCK_STARTS_NS)).any())
    disagree: NDArray[np.bool_] = np.where(valid == 0, stamps != 0, (stamps == 0) & (not starts_at_0))
    return disagree


SUMS = ("min", "max", "mean", "std")
# Of statistics that this package wrote: NumPy may add in another order on another machine.
EXACT = 1e-12  # of the greatest value
# Of others: they are often merged from episodes or computed in float32, where the variance loses half of the digits.
CLOSE = 1e-3  # of the range
ROUNDED = {"std": 5e-3}  # of the greatest value


def compare(
    findings: Findings,
    where: str,
    stored: Any,
    values: dict[str, Any],
    *,
    exact: bool,
    required: Sequence[str] = SUMS,
) -> None:
    """Report stored statistics that differ from those of the values.

    `exact`: to the rounding of sums, and quantiles too; otherwise min, max, mean and std to a thousandth of the range.
    """
    if not isinstance(stored, dict):
        findings.add(where, "is not an object of statistics")
        return
    names = [name for name in values if name in stored] if exact else [name for name in SUMS if name in stored]
    for name in [name for name in required if name not in stored]:
        findings.add(where, f"has no {name}")
    scale = np.maximum(np.abs(np.array(values["min"], float)), np.abs(np.array(values["max"], float)))
    spread = np.array(values["max"], float) - np.array(values["min"], float)
    for name in names:
        wanted = np.array(values[name], float)
        try:
            stated = np.array(stored[name], float).reshape(wanted.shape)
        except (TypeError, ValueError):
            findings.add(where, f"{name}: is not {wanted.size} numbers")
            continue
        tolerance = EXACT * scale if exact else CLOSE * spread + ROUNDED.get(name, 1e-5) * scale + 1e-9
        copied = name == "count" or (exact and name in ("min", "max"))
        off = ~(np.abs(stated - wanted) <= (0 if copied else tolerance))  # true for NaN
        if off.any():
            at = int(off.reshape(-1).argmax())
            of_column = f" of value {at}" if wanted.size > 1 else ""
            findings.add(where, f"{name}{of_column}: {stated.flat[at]:g} is stored, the data has {wanted.flat[at]:g}")
    findings.counted["statistics"] += len(names)


def compare_images(findings: Findings, where: str, stored: Any, episodes: Sequence[Mapping[str, Any]]) -> None:
    """Report statistics of the images of all episodes that are not those of the episodes together."""
    try:
        every = {name: np.array([np.reshape(of[name], -1) for of in episodes], float) for name in (*SUMS, "count")}
        stated = {name: np.reshape(stored[name], -1).astype(float) for name in (*SUMS, "count")}
    except (KeyError, TypeError, ValueError):
        findings.add(where, f"has not {', '.join(SUMS)} and count of each channel, here or in an episode")
        return
    counts = every["count"]
    if not (counts.sum(axis=0) > 0).all():
        findings.add(where, "count: the episodes have no images")
        return
    mean = (every["mean"] * counts).sum(axis=0) / counts.sum()
    variance = ((every["std"] ** 2 + (every["mean"] - mean) ** 2) * counts).sum(axis=0) / counts.sum()
    wanted = {"min": every["min"].min(axis=0), "max": every["max"].max(axis=0), "mean": mean}
    wanted |= {"std": np.sqrt(variance), "count": counts.sum(axis=0)}
    for name, of_name in wanted.items():
        if stated[name].shape != of_name.shape or not np.allclose(stated[name], of_name, rtol=CLOSE, atol=CLOSE):
            text = f"{name}: {stated[name][:1]} is stored, the episodes have {of_name[:1]}"
            findings.add(where, text)


def check_image_statistics(findings: Findings, where: str, stored: Any) -> None:
    """Report statistics of images that no images have: of pixels from 0 to 1, in their order."""
    try:
        low, mean, high, std = (np.reshape(stored[name], -1).astype(float) for name in ("min", "mean", "max", "std"))
        order = bool(((low >= 0) & (low <= mean) & (mean <= high) & (high <= 1)).all())
        usable = order and bool(((std >= 0) & (std <= (high - low) / 2 + CLOSE)).all())
    except (KeyError, TypeError, ValueError):
        usable = False
    findings.check(usable, where, "no pixels from 0 to 1 have these min, mean, max and std")


class ColumnFiles:
    """The values of each column in a temporary file, so that their statistics do not need all rows in memory."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._files: dict[str, tuple[Any, np.dtype[Any], tuple[int, ...]]] = {}  # with dtype and shape of a row

    def append(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add (T, ...) values of columns."""
        for name, values in columns.items():
            if name not in self._files:
                opened = tempfile.TemporaryFile(prefix="robocache-validate-")  # noqa: SIM115 - the stack closes it
                file = self._stack.enter_context(opened)
                self._files[name] = (file, values.dtype, values.shape[1:])
            self._files[name][0].write(np.ascontiguousarray(values).data)

    def stats(self, name: str, first: int = 0) -> Stats:
        """Return the statistics of a column from row `first` on."""
        table = self.table(name)[first:]
        return by_column(table.T, self._files[name][2], len(table))

    def table(self, name: str) -> NDArray[Any]:
        """Return the (T, K) values of a column, which are in a file."""
        file, dtype, shape = self._files[name]
        file.flush()
        return np.memmap(file, dtype, "r").reshape(-1, int(np.prod(shape, dtype=int)))

    def close(self) -> None:
        """Remove the files."""
        self._stack.close()


class ExportedEpisode(NamedTuple):
    """What the provenance states of an episode."""

    frames: int
    first_tick_ns: int
    last_tick_ns: int
    task: str
    success: bool | None


@dataclass(frozen=True)
class TickRows:
    """The rows of an episode: T ticks of N streams, in the order of the spec."""

    ticks_ns: NDArray[np.int64]  # (T,)
    stamps_ns: NDArray[np.int64]  # (T, N)
    valid: NDArray[np.integer[Any]]  # (T, N)
    age_ns: NDArray[np.int64]  # (T, N)
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # (T, ...) by vector stream that is not a window
    missing: float = 0  # the value where a stream has none
    ages_ms: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # (T, n) by window, negative for padding
    masks: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # (T, n) by window, 0 for padding, where stored
    repeated: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)  # (T,) images equal to those before them
    rewards: NDArray[Any] | None = None  # (T,)


def exported_rows(findings: Findings, name: str, *, is_own: bool) -> ExportedRows | None:
    """Return the checks by the provenance of a dataset; None without one, which is a finding if it `is_own`."""
    if not (findings.dataset / name).is_file():
        findings.check(not is_own, name, "is missing; without it readers do not know the streams")
        return None
    with findings.reading(name):
        return ExportedRows(findings, name, read_json(findings.dataset, name))
    return None


class ExportedRows:
    """Checks episodes of a dataset by what its provenance, the contents `raw` of `file`, states."""

    def __init__(self, findings: Findings, file: str, raw: Any) -> None:
        self._findings, self._file = findings, file
        try:
            self.spec: FusionSpec = load_spec(_in_order(raw["layout"]))
            self.layout = Layout(self.spec)
            recordings, options = raw["recordings"], raw["options"]
            self.episodes = [_episode(stated, recordings[stated["recording"]]) for stated in raw["episodes"]]
            self.robot, self._options = options["robot_type"], options
            self._check_layout(raw)
            self._check_totals(raw)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            text = f"{type(error).__name__}: {printable(error, 60)}"
            raise RoboCacheError(f"{file}: is not the provenance of an export ({text}); restore the file") from None
        self._latency = np.array([stream.latency_ns for stream in self.spec.streams], np.int64)

    def _check_layout(self, raw: dict[str, Any]) -> None:
        """Compare the layout with the spec in it, and the spec with the other copy of it."""
        stated, made = raw["layout"], self.layout.to_dict()
        for key in ("rate_hz", "row_width"):
            text = f"layout.{key} is {printable(stated[key], 20)}; its spec has {made[key]}"
            self._findings.check(stated[key] == made[key], self._file, text)
        names = [column["name"] for column in stated["columns"]]
        wanted = [column["name"] for column in made["columns"]]
        self.check_names("layout.columns", names, wanted, where=self._file)
        self.check_names("layout.streams", sorted(stated["streams"]), sorted(made["streams"]), where=self._file)
        for name, stream in made["streams"].items():
            other = [key for key in stream if stated["streams"].get(name, {}).get(key, stream[key]) != stream[key]]
            self._findings.check(not other, self._file, f"layout.streams.{name}: {other[:1]} is not that of its spec")
        if self._options["action"] == "absolute":
            same = raw["spec"] == stated["spec"] or set(raw["spec"]["streams"]) != set(stated["spec"]["streams"])
            self._findings.check(same, self._file, "spec is not that of layout.spec")

    def _check_totals(self, raw: dict[str, Any]) -> None:
        """Compare the episodes with the recordings that they are of."""
        for index, recording in enumerate(raw["recordings"]):
            frames = sum(e["frames"] for e in raw["episodes"] if e["recording"] == index)
            text = f"recordings.{index}.frames is {recording['frames']}; its episodes have {frames}"
            self._findings.check(recording["frames"] == frames, self._file, text)

    @property
    def tasks(self) -> list[str]:
        """The tasks of the dataset, by their index."""
        return list(dict.fromkeys(episode.task for episode in self.episodes))

    def of_role(self, role: str) -> list[StreamSpec]:
        """Return the vectors of a role that are not windows, whose values are side by side."""
        return [stream for stream in self.spec.vectors if stream.role == role and not stream.rows]

    @property
    def windows(self) -> list[str]:
        """The vectors with several samples in a tick."""
        return [stream.name for stream in self.spec.vectors if stream.rows]

    @property
    def columns(self) -> list[str]:
        """The columns of `tick_rows`."""
        return [*TICK_COLUMNS, *(f"{kind}.{name}" for kind in OF_WINDOW for name in self.windows)]

    def tick_rows(
        self, columns: Mapping[str, NDArray[Any]], values: Mapping[str, NDArray[Any]], **others: Any
    ) -> TickRows:
        """Return the rows of an episode, given their columns, values by vector stream, and other fields of `TickRows`.

        Columns of windows may be missing, and their values are left out.
        """
        ticks, stamps, valid, ages = (columns[name] for name in TICK_COLUMNS)
        ages_ms, masks = (
            {name: columns[f"{kind}.{name}"] for name in self.windows if f"{kind}.{name}" in columns}
            for kind in OF_WINDOW
        )
        vectors = {name: of_stream for name, of_stream in values.items() if name not in self.windows}
        return TickRows(ticks.reshape(-1), stamps, valid, ages, vectors, ages_ms=ages_ms, masks=masks, **others)

    def labels(self, role: str) -> list[str]:
        """Return the names of the values of the vectors of a role."""
        return [f"{stream.name}.{component}" for stream in self.of_role(role) for component in stream.components]

    def split(self, tables: Mapping[str, NDArray[Any] | None]) -> dict[str, NDArray[Any]]:
        """Split the (T, D) values of roles by stream, but for those whose number is not that of the spec."""
        found: dict[str, NDArray[Any]] = {}
        for role, table in tables.items():
            widths = [stream.width for stream in self.of_role(role)]
            if table is not None and table.ndim == 2 and table.shape[1] == sum(widths):
                parts = np.split(table, np.cumsum(widths)[:-1], axis=1)
                found.update(zip((stream.name for stream in self.of_role(role)), parts, strict=True))
        return found

    def with_nan(self, rows: TickRows, tables: Mapping[str, NDArray[Any] | None]) -> dict[str, NDArray[Any]]:
        """Return the (T, D) values of roles with NaN where a stream has none, but for those of another shape."""
        found: dict[str, NDArray[Any]] = {}
        for role, table in tables.items():
            filled = self.filled(rows, role)
            if table is not None and table.shape == filled.shape:
                found[role] = np.where(filled, table, np.float32(np.nan))
        return found

    def filled(self, rows: TickRows, role: str) -> NDArray[np.bool_]:
        """Return (T, D) where the vectors of a role have a value."""
        has = [self._has(rows, stream)[:, None].repeat(stream.width, axis=1) for stream in self.of_role(role)]
        return np.concatenate([np.zeros((len(rows.ticks_ns), 0), bool), *has], axis=1)

    def _has(self, rows: TickRows, stream: StreamSpec) -> NDArray[np.bool_]:
        has: NDArray[np.bool_] = rows.valid[:, self.layout.names.index(stream.name)] > 0
        return has

    def check_names(self, what: str, found: Any, wanted: Sequence[str], *, where: str) -> None:
        """Report names that are not those of the spec."""
        if not isinstance(found, list) or len(found) != len(wanted):
            size = len(found) if isinstance(found, list) else "no"
            self._findings.add(where, f"{what}: {size} names; the spec has {len(wanted)}")
            return
        off = [k for k, (one, other) in enumerate(zip(found, wanted, strict=True)) if one != other]
        if off:
            one, other = printable(found[off[0]], 40), printable(wanted[off[0]], 40)
            self._findings.add(where, f"{what}: name {off[0]} is {one}; the spec has {other}")

    def check_count(self, count: int, where: str) -> None:
        """Report a number of episodes that is not that of the provenance."""
        text = f"{count} episodes; {self._file} has {len(self.episodes)}"
        self._findings.check(count == len(self.episodes), where, text)

    def check_value(self, where: str, what: str, found: Any, wanted: Any) -> None:
        """Report a value that is not that of the provenance."""
        text = f"{what} is {printable(found, 50)}; {self._file} has {printable(wanted, 50)}"
        self._findings.check(found == wanted and isinstance(found, bool) == isinstance(wanted, bool), where, text)

    def check_episode(self, where: str, number: int, rows: TickRows) -> bool:
        """Check the rows of an episode of the dataset; return whether they are of the streams of the spec."""
        if not self._have_shapes(where, rows):
            return False
        if number < len(self.episodes):
            stated = self.episodes[number]
            self.check_value(where, "its number of rows", len(rows.ticks_ns), stated.frames)
            if len(rows.ticks_ns):
                self.check_value(where, "the first tick", int(rows.ticks_ns[0]), stated.first_tick_ns)
                self.check_value(where, "the last tick", int(rows.ticks_ns[-1]), stated.last_tick_ns)
        self.check_rows(where, rows)
        if rows.rewards is not None:
            self.check_rewards(where, number, rows, rows.rewards)
        return True

    def check_rows(self, where: str, rows: TickRows) -> None:
        """Check consecutive rows against each other and against the spec."""
        check_ticks(self._findings, where, rows.ticks_ns, self.spec.rate_hz)
        known = np.isin(rows.valid, (0, 1, 2))
        self._report(where, ~known, lambda t, n: f"valid is {rows.valid[t, n]}; it must be 0, 1 or 2")
        has = rows.valid > 0
        wanted = np.where(has, rows.ticks_ns[:, None] - rows.age_ns + self._latency, 0)
        disagree = stamps_disagree(rows.stamps_ns, rows.valid)
        self._report(where, disagree, lambda t, n: f"stamp is {rows.stamps_ns[t, n]} with valid {rows.valid[t, n]}")
        self._report(
            where,
            (rows.stamps_ns != wanted) & has & ~disagree,
            lambda t, n: f"stamp is {rows.stamps_ns[t, n]}; tick - age is {wanted[t, n]}",
        )
        self._report(where, ~has & (rows.age_ns != 0), lambda t, n: f"age is {rows.age_ns[t, n]} with valid 0")
        self._check_limits(where, rows)
        for stream in self.spec.streams:
            if stream.name in rows.values:
                self._check_values(where, rows, stream, rows.values[stream.name].reshape(len(has), -1))
            if stream.name in rows.ages_ms:
                self._check_window(where, rows, stream)
            if stream.name in rows.repeated:
                self.check_media(where, rows, stream, rows.repeated[stream.name])

    def _have_shapes(self, where: str, rows: TickRows) -> bool:
        shape = (len(rows.ticks_ns), len(self.spec.streams))
        tables = {"stamps": rows.stamps_ns, "valid": rows.valid, "ages": rows.age_ns}
        for name, table in tables.items():
            text = f"{name}: {list(table.shape)} values; {self._file} has {shape[1]} streams"
            if not self._findings.check(table.shape == shape, where, text):
                return False
        return True

    def _report(self, where: str, off: NDArray[np.bool_], what: Callable[[int, int], str]) -> None:
        """Report in which rows of a stream something is wrong, and what in the first one."""
        for n in np.flatnonzero(off.any(axis=0)).tolist():
            row = int(off[:, n].argmax())
            text = f"{self.layout.names[n]}: wrong in {int(off[:, n].sum())} rows; in row {row} {what(row, n)}"
            self._findings.add(where, text)

    def _check_limits(self, where: str, rows: TickRows) -> None:
        """Check ages of samples that are held against the longest age of the spec."""
        off = np.zeros(rows.valid.shape, np.bool_)
        for n, stream in enumerate(self.spec.streams):
            held = "hold" in (stream.on_invalid, self._options.get("on_invalid"))
            if stream.align == "hold" and not held and stream.role == "observation" and stream.type != TF_TYPE:
                age = rows.age_ns[:, n]
                off[:, n] = (rows.valid[:, n] == 1) & ((age < 0) | (age > stream.max_age_ns))
        longest = [stream.max_age_ns for stream in self.spec.streams]
        self._report(where, off, lambda t, n: f"age is {rows.age_ns[t, n]}; its samples are 0 to {longest[n]} ns old")

    def copies(self, stream: StreamSpec) -> bool:
        """Return whether ticks with equal stamps have equal values: those of the sample with this stamp."""
        labelled = stream.role == "action" and self._options["action"] != "absolute"
        return alignment(stream.align).selects != "neighbours" and not labelled and stream.type != TF_TYPE

    def _check_values(self, where: str, rows: TickRows, stream: StreamSpec, values: NDArray[Any]) -> None:
        has = self._has(rows, stream)
        empty = np.isnan(values) if np.isnan(rows.missing) else values == rows.missing
        name, missing = stream.name, f"where valid is 0; it must be {rows.missing:g}"
        self._findings.report_rows(
            ~has & ~empty.all(axis=1),
            where,
            lambda row: f"{name}: {values[row][~empty[row]][0]:g} in row {row}, {missing}",
        )
        other = (values[1:] != values[:-1]).any(axis=1) & np.isfinite(values[1:]).all(axis=1)
        self._check_copies(where, rows, stream, np.concatenate([[False], other])[: len(values)], "value")

    def _check_copies(
        self, where: str, rows: TickRows, stream: StreamSpec, other: NDArray[np.bool_], what: str
    ) -> None:
        """Check rows (T,) with another value than the row before: they must not have the same stamp."""
        has, stamps = self._has(rows, stream), rows.stamps_ns[:, self.layout.names.index(stream.name)]
        off = np.concatenate([[False], other[1:] & has[1:] & has[:-1] & (stamps[1:] == stamps[:-1])])
        if self.copies(stream) and off.any():
            text = f"in {int(off.sum())} rows, the first is row {off.argmax()}, another {what} than in the row before"
            self._findings.add(where, f"{stream.name}: {text}, with the same stamp")

    def _check_window(self, where: str, rows: TickRows, stream: StreamSpec) -> None:
        """Check the ages of the samples of a window against the age of the newest, and the mask against the ages."""
        ages_ms, has = rows.ages_ms[stream.name], self._has(rows, stream)
        age_ns = rows.age_ns[:, self.layout.names.index(stream.name)]
        present = ages_ms >= 0
        newest = np.where(present, ages_ms, np.inf).min(axis=1, initial=np.inf)
        # Ages are float32 milliseconds, converted from nanoseconds.
        off = has & ~(np.abs(newest - age_ns / 1e6) <= 1e-3) | (present.any(axis=1) & ~has)
        self._findings.report_rows(
            off,
            f"{where}, {stream.name}",
            lambda row: f"the newest sample of row {row} is {newest[row]:g} ms old; the age is {age_ns[row]} ns",
        )
        mask = rows.masks.get(stream.name)
        text = f"mask of {stream.name}: is not where the age of the sample is 0 or more"
        self._findings.check(mask is None or np.array_equal(mask != 0, present), where, text)

    def check_media(self, where: str, rows: TickRows, stream: StreamSpec, same: NDArray[np.bool_]) -> None:
        """Check images or voxels, given in which rows (T,) they are those of the row before."""
        self._check_copies(where, rows, stream, ~same, "image")

    def check_rewards(self, where: str, number: int, rows: TickRows, rewards: NDArray[Any]) -> None:
        """Check the rewards of an episode: 0 where their stream has no value; without a stream 1 after a success."""
        streams = self.of_role("reward")
        if streams:
            self._check_values(where, rows, streams[0], rewards.reshape(-1, 1))
        elif number < len(self.episodes) and len(rewards):
            rewards, wanted = rewards.reshape(-1), np.zeros(len(rewards), np.float32)
            wanted[-1] = float(bool(self.episodes[number].success))
            self._findings.report_rows(
                rewards != wanted, where, lambda row: f"reward of row {row} is {rewards[row]:g}, not {wanted[row]:g}"
            )


def _in_order(layout: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a layout with its streams in the order of the columns, which JSON with sorted keys loses."""
    spec: dict[str, Any] = layout["spec"]
    order = [column["stream"] for column in layout["columns"] if column["quantity"] == "valid"]
    if sorted(order) != sorted(spec["streams"]):
        return spec
    return {**spec, "streams": {name: spec["streams"][name] for name in order}}


def _episode(stated: dict[str, Any], recording: dict[str, Any]) -> ExportedEpisode:
    task = recording["task"] if stated["task"] is None else stated["task"]
    success = recording["success"] if stated["success"] is None else stated["success"]
    return ExportedEpisode(stated["frames"], stated["first_tick_ns"], stated["last_tick_ns"], task, success)
