"""What the checks of all versions of LeRobot datasets share: info.json, columns, rows, images and videos."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.file_limits import open_table
from robocache_ros.formats.check import (
    ColumnFiles,
    ExportedRows,
    Findings,
    TickRows,
    compare,
    file_in,
    image_size,
    read_json,
)
from robocache_ros.formats.lerobot import schema
from robocache_ros.formats.schema import ACTION, AGE, AGES, IMAGES, MASK, STAMP, STATE, TICK, VALID, WINDOW
from robocache_ros.formats.statistics import Stats
from robocache_ros.untrusted_files import DatasetFile, filled, open_container

MAX_FEATURES = 500
MAX_VALUES = 1 << 24  # of one feature


@dataclass(frozen=True)
class Feature:
    """A feature of info.json."""

    dtype: str
    shape: tuple[int, ...]
    names: Any
    video: Mapping[str, Any] = field(default_factory=dict)  # video.height, video.codec, …

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of images, in either order of the axes."""
        if self.dtype not in ("image", "video") or len(self.shape) != 3:
            return None
        first = isinstance(self.names, list) and self.names[:1] in (["channel"], ["channels"])
        return (self.shape[1], self.shape[2]) if first else (self.shape[0], self.shape[1])


@dataclass(frozen=True)
class Info:
    """The contents of info.json that the checks use."""

    raw: dict[str, Any]
    fps: float
    features: dict[str, Feature]
    own: bool  # written by this package

    @property
    def videos(self) -> dict[str, Feature]:
        """Features that are videos."""
        return {key: feature for key, feature in self.features.items() if feature.dtype == "video"}

    def path(self, template: str, **values: int | str) -> str:
        """Return the path of a file from one of the templates of info.json.

        Errors:
            RoboCacheError: the template is missing or names something else.
        """
        pattern = self.raw.get(template)
        if not isinstance(pattern, str):
            raise RoboCacheError(f"{schema.INFO}: has no {template}")
        try:
            return filled(pattern, **values)
        except (KeyError, ValueError) as error:
            raise RoboCacheError(
                f"{schema.INFO}: {template} {printable(pattern, 60)!r} has an unknown field ({error})"
            ) from None

    def check_total(self, findings: Findings, key: str, found: int) -> None:
        """Report a total of info.json that differs from the data."""
        told = self.raw.get(key)
        findings.check(told == found, schema.INFO, f"{key} is {printable(told, 20)}; the dataset has {found}")

    def check_splits(self, findings: Findings, episodes: int) -> None:
        """Report splits that are not ranges of episodes, or that have an episode in common."""
        splits = self.raw.get("splits")
        used: dict[int, str] = {}
        for name, span in (splits if isinstance(splits, dict) else {}).items():
            ends = str(span).split(":")
            where = f"{schema.INFO}, splits.{printable(name, 30)}"
            if len(ends) != 2 or not all(end.strip().isdigit() and len(end) < 12 for end in ends):
                findings.add(where, f"{printable(span, 40)} is not a range of episodes as 0:{episodes}")
                continue
            first, stop = map(int, ends)
            if findings.check(first < stop <= episodes, where, f"{span} is not in 0:{episodes}, the episodes"):
                both = [used[episode] for episode in range(first, stop) if episode in used]
                findings.check(not both, where, f"{span} has {len(both)} episodes of {', '.join(both[:1])}")
                used.update((episode, str(name)) for episode in range(first, stop))
        if self.own:
            text = f"{episodes - len(used)} of {episodes} episodes are in no split"
            findings.check(len(used) == episodes, f"{schema.INFO}, splits", text)


def codebase_version(dataset: Path) -> str | None:
    """Return the version of LeRobot's format, e.g. v3.0; None if this is no LeRobot dataset."""
    try:
        raw = read_json(dataset, schema.INFO)
    except (RoboCacheError, OSError):
        return None
    version = raw.get("codebase_version") if isinstance(raw, dict) else None
    return version if isinstance(version, str) else None


def read_info(dataset: Path) -> Info:
    """Read info.json.

    Errors:
        RoboCacheError: it cannot be read, or fps or the features are not usable.
    """
    raw = read_json(dataset, schema.INFO)
    fps = raw.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1e6:
        raise RoboCacheError(f"{schema.INFO}: fps is {printable(fps, 40)}; it must be a positive number")
    features = raw.get("features")
    if not isinstance(features, dict) or not 0 < len(features) <= MAX_FEATURES:
        raise RoboCacheError(f"{schema.INFO}: features is not an object of 1 to {MAX_FEATURES} features")
    known = {key: _feature(key, value) for key, value in features.items()}
    return Info(raw, float(fps), known, (dataset / schema.PROVENANCE).is_file())


def _feature(key: str, value: Any) -> Feature:
    where = f"{schema.INFO}: features.{printable(key, 60)}"
    if not isinstance(value, dict) or not isinstance(value.get("dtype"), str):
        raise RoboCacheError(f"{where}: has no dtype")
    shape = value.get("shape")
    if not isinstance(shape, list) or not all(isinstance(side, int) and side > 0 for side in shape):
        raise RoboCacheError(f"{where}: shape is not a list of positive integers")
    if math.prod(shape) > MAX_VALUES:
        raise RoboCacheError(f"{where}: has more than {MAX_VALUES:,} values")
    video = value.get("info") or value.get("video_info")
    return Feature(value["dtype"], tuple(shape), value.get("names"), video if isinstance(video, dict) else {})


def check_standard_features(findings: Findings, info: Info) -> None:
    """Report columns that every LeRobot dataset has and this one has not."""
    for key, dtype in schema.STANDARD.items():
        feature = info.features.get(key)
        if feature is None:
            findings.add(schema.INFO, f"features has no {key}")
        else:
            findings.check(
                feature.dtype == dtype, schema.INFO, f"features.{key}: dtype is {feature.dtype}; LeRobot has {dtype}"
            )
    for key, feature in info.videos.items():
        wanted = {"video.fps": info.fps}
        wanted |= dict(zip(("video.height", "video.width"), feature.size or (), strict=False))
        for name, value in wanted.items():
            text = f"features.{key}: {name} is {printable(feature.video.get(name), 20)}; it must be {value:g}"
            findings.check(feature.video.get(name, value) == value, schema.INFO, text)
    if "action" not in info.features:
        findings.skip("actions: the dataset has none, so no policy can be trained to act")


class OwnColumns:
    """Checks the columns of a dataset that this package wrote. Does nothing for others.

    Args:
        findings: collects what is wrong.
        info: of the dataset.

    Attributes:
        exported: what the provenance states; None without one.
    """

    def __init__(self, findings: Findings, info: Info) -> None:
        self._findings, self._info = findings, info
        self.exported: ExportedRows | None = None
        self._last: TickRows | None = None  # of the last episode
        if info.own:
            with findings.reading(schema.PROVENANCE):
                raw = read_json(findings.dataset, schema.PROVENANCE)
                self.exported = ExportedRows(findings, schema.PROVENANCE, raw)
                self._check_info(self.exported, raw)
        elif any(key.startswith("robocache.") for key in info.features):
            findings.add(schema.PROVENANCE, "is missing; without it readers do not know the streams and their stamps")

    def _check_info(self, exported: ExportedRows, raw: dict[str, Any]) -> None:
        """Compare info.json with the spec."""
        info, names = self._info, list(exported.layout.names)
        exported.check_value(schema.INFO, "fps", info.raw["fps"], exported.spec.rate_hz)
        exported.check_value(schema.INFO, "robot_type", info.raw.get("robot_type"), exported.robot)
        wanted = dict.fromkeys((STAMP, VALID, AGE), names)
        wanted |= {STATE: exported.labels("observation"), ACTION: exported.labels("action")}
        wanted |= {WINDOW + s.name: list(s.components) for s in exported.spec.vectors if s.rows}
        for key, of_key in wanted.items():
            if key in info.features:
                exported.check_names(f"features.{key}", info.features[key].names, of_key, where=schema.INFO)
            elif of_key:
                self._findings.add(schema.INFO, f"features has no {key}; {schema.PROVENANCE} has streams of it")
        images = raw.get("images")
        for stream, told in (images if isinstance(images, dict) else {}).items():
            stored = str((told if isinstance(told, dict) else {}).get("stored"))
            if stored == "not stored" or stored.startswith("arrays"):
                continue
            self._findings.check(IMAGES + stream in info.features, schema.INFO, f"features has no {IMAGES}{stream}")
            size = exported.spec.stream(stream).image
            found = info.features[IMAGES + stream].size if IMAGES + stream in info.features else None
            if size and size.size and found:
                exported.check_value(schema.INFO, f"features.{IMAGES}{stream}: its size", list(found), list(size.size))

    def check(self, where: str, values: dict[str, NDArray[Any]], episode: int) -> dict[str, NDArray[Any]]:
        """Check the columns of an episode; return by feature its values with NaN where they are missing."""
        if TICK in values and (VALID not in values or values[VALID].ndim != 2):
            self._findings.add(where, f"has no {VALID} of (rows, streams): it cannot be loaded")
            return {}
        if TICK in values and (AGE not in values or values[AGE].shape != values[VALID].shape):
            self._findings.add(where, f"{AGE} does not have the shape of {VALID}: it cannot be loaded")
            return {}
        missing = {}
        for key, mask in ((WINDOW + key.removeprefix(MASK), mask) for key, mask in values.items() if MASK in key):
            if key in values and values[key].shape[:2] == mask.shape:
                padding = np.broadcast_to(mask[:, :, None] == 0, values[key].shape)
                zero = not values[key][padding].any()
                self._findings.check(zero, where, f"{key}: values are not 0 where there is no sample")
                missing[key] = np.where(padding, np.float32(np.nan), values[key])
        rows = self._last = self._rows(values)
        if rows is None or self.exported is None:
            return missing
        self.exported.check_episode(where, episode, rows)
        if rows.valid.shape != (len(rows.ticks_ns), len(self.exported.layout.names)):
            return missing
        for key, role in ((STATE, "observation"), (ACTION, "action")):
            if key in values:
                filled = self.exported.filled(rows, role)
                if filled.shape == values[key].shape:
                    missing[key] = np.where(filled, values[key], np.float32(np.nan))
        self._check_windows(where, values, rows)
        self._check_outcomes(where, values, rows, episode)
        return missing

    def _rows(self, values: dict[str, NDArray[Any]]) -> TickRows | None:
        if self.exported is None or not {TICK, STAMP, VALID, AGE} <= set(values):
            return None
        tables = [values[key].reshape(len(values[key]), -1) for key in (STAMP, VALID, AGE)]
        parts = {
            **self.exported.parts("observation", values.get(STATE)),
            **self.exported.parts("action", values.get(ACTION)),
        }
        return TickRows(values[TICK].reshape(-1), tables[0], tables[1], tables[2], parts)

    def _check_windows(self, where: str, values: dict[str, NDArray[Any]], rows: TickRows) -> None:
        assert self.exported is not None
        for stream in self.exported.spec.vectors:
            ages, mask = values.get(AGES + stream.name), values.get(MASK + stream.name)
            if not stream.rows or ages is None or mask is None:
                continue
            ages, mask = ages.reshape(len(ages), -1), mask.reshape(len(mask), -1)
            self.exported.check_window(where, rows, stream, ages)
            off = ((ages >= 0) != (mask != 0)).any(axis=1)
            text = f"{MASK}{stream.name}: is not where {AGES}{stream.name} is 0 or more, in row {off.argmax()}"
            self._findings.check(not off.any(), where, text)

    def _check_outcomes(self, where: str, values: dict[str, NDArray[Any]], rows: TickRows, episode: int) -> None:
        assert self.exported is not None
        if schema.REWARD in values:
            self.exported.check_rewards(where, episode, rows, values[schema.REWARD])
        if schema.DONE in values:
            done = values[schema.DONE].reshape(-1).astype(bool)
            off = done != (np.arange(len(done)) == len(done) - 1)
            text = f"{schema.DONE} is {done[off.argmax()]} in row {off.argmax()}; it is true in the last row only"
            self._findings.check(not off.any(), where, text)
        if schema.SUCCESS in values and episode < len(self.exported.episodes) and len(values[schema.SUCCESS]):
            found, told = values[schema.SUCCESS].reshape(-1).astype(bool), self.exported.episodes[episode]
            self.exported.check_value(where, f"{schema.SUCCESS} of the last row", bool(found[-1]), bool(told.success))
            if not self.exported.of_role("success"):
                text = f"{schema.SUCCESS} is true in row {found[:-1].argmax()}; it can be in the last row only"
                self._findings.check(not found[:-1].any(), where, text)

    def check_repeated(self, where: str, key: str, same: NDArray[np.bool_]) -> None:
        """Check the images of the last episode, given in which rows (T,) they are those of the row before."""
        stream = key.removeprefix(IMAGES)
        exported, rows = self.exported, self._last
        if exported is None or rows is None or stream not in exported.layout.names:
            return
        if rows.valid.shape == (len(same), len(exported.layout.names)):
            exported.check_media(where, rows, exported.spec.stream(stream), same)

    def check_task(self, where: str, episode: int, task: Any) -> None:
        """Check the task of an episode."""
        if self.exported is not None and episode < len(self.exported.episodes):
            self.exported.check_value(where, "its task", task, self.exported.episodes[episode].task)


def check_own(findings: Findings, rows: EpisodeRows, episodes: tuple[str, int], tasks: tuple[str, list[str]]) -> None:
    """Compare what this package wrote with its provenance, given the files of episodes and tasks and their contents."""
    exported = rows.own.exported
    if exported is not None:
        exported.check_count(episodes[1], episodes[0])
        exported.check_value(tasks[0], "the list of tasks", tasks[1], exported.tasks)
        check_arrays(findings, exported, rows.starts, rows.table(STAMP))


def check_norm_stats(findings: Findings, info: Info, statistics: dict[str, Any]) -> None:
    """Compare the statistics for openpi with the values. Those of actions may be of chunks of them."""
    if not (info.own and (findings.dataset / schema.NORM_STATS).is_file()):
        return
    with findings.reading(schema.NORM_STATS, KeyError, TypeError):
        told = read_json(findings.dataset, schema.NORM_STATS)["norm_stats"]
        for name, key in schema.OPENPI_KEYS.items():
            where = f"{schema.NORM_STATS}: {name}"
            if name not in told:
                findings.add(where, "is missing")
            elif key == STATE and key in statistics:
                compare(findings, where, told[name], statistics[key], exact=True, required=schema.OPENPI_STATS)
    findings.skip(f"actions in {schema.NORM_STATS}: they may be of chunks of actions")


def check_arrays(
    findings: Findings,
    exported: ExportedRows | None,
    starts: list[int],
    stamps_ns: NDArray[np.int64] | None,
) -> None:
    """Compare the depth images and voxels in arrays/ with the rows.

    Args:
        findings: collects what is wrong.
        exported: what the provenance states.
        starts: the first row of each episode, and the number of all rows.
        stamps_ns: (rows, N) of all episodes, 0 without a value.
    """
    if exported is None or stamps_ns is None:
        return
    raw = read_json(findings.dataset, schema.PROVENANCE).get("arrays")
    listed = raw if isinstance(raw, dict) else {}
    for stream, told in listed.items():
        where = f"arrays/{stream}"
        with findings.reading(where, KeyError, TypeError, ValueError, need("pyarrow", "export").ArrowException):
            if stream not in exported.layout.names:
                raise RoboCacheError(f"{where}: is not a stream of {schema.PROVENANCE}")
            of_stream = np.array(stamps_ns[:, exported.layout.names.index(stream)])
            used = _check_array_files(findings, stream, told, starts, of_stream)
            lacking = np.flatnonzero((of_stream != 0) & ~used)
            if len(lacking):
                episode = int(np.searchsorted(starts, lacking[0], "right")) - 1
                text = f"{len(lacking)} rows have no array, the first is row {lacking[0] - starts[episode]}"
                findings.add(where, f"{text} of episode {episode}")
    for path in sorted((findings.dataset / "arrays").glob("*")):
        findings.check(path.name in listed, f"arrays/{path.name}", f"is not in arrays of {schema.PROVENANCE}")


def _check_array_files(
    findings: Findings, stream: str, told: dict[str, Any], starts: list[int], stamps_ns: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Check the files of a stream; return (rows,) which rows have an array."""
    used = np.zeros(len(stamps_ns), np.bool_)
    size = int(np.prod(told["shape"], dtype=np.int64))
    size = -(-size // 8) if told["dtype"] == "bits" else size * np.dtype(told["dtype"]).itemsize
    last = 0
    for path in sorted((findings.dataset / "arrays" / stream).glob("*/*.parquet")):
        name = path.relative_to(findings.dataset).as_posix()
        with open_table(file_in(findings.dataset, name), name) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                of_row = (table[key].to_pylist() for key in ("episode_index", "frame_from", "frame_to", "stamp_ns"))
                for row, (episode, start, stop, stamp) in enumerate(zip(*of_row, strict=True)):
                    where = f"{name}, episode {episode}, rows {start} to {stop}"
                    known = isinstance(episode, int) and 0 <= episode < len(starts) - 1
                    inside = known and 0 <= start < stop <= starts[episode + 1] - starts[episode]
                    if not findings.check(inside, where, "are not rows of the episode"):
                        continue
                    rows = slice(starts[episode] + start, starts[episode] + stop)
                    findings.check(rows.start >= last, where, "belong to another array too, or are not in order")
                    last, used[rows] = rows.stop, True
                    off = stamps_ns[rows] != stamp
                    text = f"its stamp is {stamp}; row {start + off.argmax()} has {stamps_ns[rows][off.argmax()]}"
                    findings.check(not off.any(), where, text)
                    if "data" in table.column_names:
                        data = table["data"][row].as_py()
                        text = f"{len(data or b'')} bytes; the shape has {size}"
                        findings.check(data is not None and len(data) == size, where, text)
                    findings.counted["arrays"] += 1
    return used


def check_images(findings: Findings, info: Info, where: str, table: Any, own: OwnColumns) -> None:
    """Check that every row of an episode has an image of the feature's size; decode it with `findings.decode`.

    A row that repeats the bytes of the row before is not looked at again.
    """
    for key, feature in info.features.items():
        if feature.dtype != "image":
            continue
        if key not in table.column_names:
            findings.add(where, f"column {printable(key, 60)} is missing")
            continue
        before = len(findings.found)
        last, same = b"", np.zeros(len(table), np.bool_)
        for row, cell in enumerate(table[key]):
            value = cell.as_py()
            data = value.get("bytes") if isinstance(value, dict) else None
            if not data:
                findings.add(where, f"{key}: row {row} has no image")
                break
            if data == last:
                same[row] = True
                continue
            last = data
            with findings.reading(f"{where}, {key}, row {row}", ValueError):
                found = image_size(data, decode=findings.decode)
                findings.counted["decoded frames"] += findings.decode
                if feature.size is not None and found != feature.size:
                    findings.add(where, f"{key}: row {row} is {found[0]}x{found[1]}, not {feature.size}")
                    break
            findings.counted["images"] += 1
        if len(findings.found) == before:
            own.check_repeated(where, key, same)


TIMESTAMP_TOLERANCE_S = 1e-4  # LeRobot's


class EpisodeRows:
    """Checks the rows of a dataset, episode by episode.

    Args:
        findings: collects what is wrong.
        info: of the dataset.
        folder: for the values of all columns, from which their statistics are computed; NaN for missing values.
        tasks: the tasks, by their index.

    Attributes:
        rows: number of rows so far.
        starts: the first row of each episode so far, and `rows`.
        own: the columns of this package.
    """

    def __init__(self, findings: Findings, info: Info, folder: Path, tasks: Sequence[str]) -> None:
        self._findings, self._info, self._tasks = findings, info, tasks
        self.own = OwnColumns(findings, info)
        self._columns = ColumnFiles(folder)
        self.rows = 0
        self.starts = [0]
        self._usable: set[str] | None = None  # columns that every file has, with the shape of their feature

    def check(self, file: str, table: Any, episode: int, length: int, tasks: Any = None) -> None:
        """Check the rows of an episode.

        Args:
            file: name of the file, relative to the dataset.
            table: the pyarrow table of the rows of the episode.
            episode: its index.
            length: the number of rows that it must have.
            tasks: its tasks, as its metadata state them.
        """
        where = f"{file}, episode {episode}"
        self._findings.check(len(table) == length, where, f"{len(table)} rows; the episode has {length}")
        values: dict[str, NDArray[Any]] = {}
        for key, feature in self._info.features.items():
            if feature.dtype in ("video", "string", "image"):
                continue
            with self._findings.reading(where, ValueError):
                values[key] = column_values(table, key, feature)
        self._check_indices(where, values, episode, len(table))
        self._check_tasks(where, values, episode, tasks)
        for key, column in values.items():
            if column.dtype.kind == "f" and not np.isfinite(column).all():
                bad = ~np.isfinite(column.reshape(len(column), -1)).all(axis=1)
                text = f"{key}: NaN or infinite in {int(bad.sum())} rows, the first is row {bad.argmax()}"
                self._findings.add(where, text)
        missing = self.own.check(where, values, episode)
        self._remember({**values, **missing})
        self.rows += len(table)
        self.starts.append(self.rows)
        self._findings.counted["rows"] += len(table)

    def _remember(self, values: dict[str, NDArray[Any]]) -> None:
        """Keep the values for the statistics, of the columns that all episodes have."""
        if self._usable is None:
            self._usable = set(values)
        self._usable &= set(values)
        if self._usable and len(next(iter(values.values()))):
            self._columns.append({key: values[key] for key in values if key in self._usable})

    def statistics(self, first: int = 0) -> dict[str, Stats]:
        """Return the statistics of each column from row `first` on, for the columns that all episodes have."""
        usable = sorted(self._usable or ()) if self.rows else []
        return {key: self._columns.stats(key, first) for key in usable}

    def table(self, name: str) -> NDArray[Any] | None:
        """Return the (rows, K) values of a column, which are in a file; None if an episode lacks it."""
        return self._columns.table(name) if self.rows and name in (self._usable or ()) else None

    def close(self) -> None:
        """Close the files of the columns."""
        self._columns.close()

    def _check_indices(self, where: str, values: dict[str, NDArray[Any]], episode: int, rows: int) -> None:
        wanted: dict[str, NDArray[Any]] = {
            "episode_index": np.full(rows, episode),
            "frame_index": np.arange(rows),
            "index": np.arange(self.rows, self.rows + rows),
        }
        # GR00T's annotations are tasks too.
        for key in (*schema.STANDARD, *(key for key in values if key.startswith("annotation."))):
            if key not in values:
                continue
            column = values[key].reshape(-1)
            if key in wanted:
                off = column != wanted[key]
                meant = f"{wanted[key][off.argmax()]}" if off.any() else ""
            elif key == "timestamp":
                off = ~(np.abs(column - np.arange(rows) / self._info.fps) <= TIMESTAMP_TOLERANCE_S)
                meant = f"{off.argmax() / self._info.fps:g} s" if off.any() else ""
            else:
                off = (column < 0) | (column >= len(self._tasks))
                meant = f"0 to {len(self._tasks) - 1}"
            if off.any():
                row = int(off.argmax())
                text = f"{key}: wrong in {int(off.sum())} rows; in row {row} it is {column[row]:g} and must be {meant}"
                self._findings.add(where, text)

    def _check_tasks(self, where: str, values: dict[str, NDArray[Any]], episode: int, tasks: Any) -> None:
        """Compare the tasks of the rows with those of the episode."""
        if "task_index" not in values or not isinstance(tasks, list) or not len(values["task_index"]):
            return
        indices = values["task_index"].reshape(-1)
        found = [self._tasks[index] for index in np.unique(indices).tolist() if 0 <= index < len(self._tasks)]
        text = f"task_index: its rows have the task {found[:1]}; the episode has {tasks[:1]}"
        self._findings.check(set(found) == set(map(str, tasks)), where, text)
        self.own.check_task(where, episode, tasks[0] if len(tasks) == 1 else tasks)
        for key, column in values.items():
            if self._info.own and key.startswith("annotation."):
                off = column.reshape(-1) != indices
                self._findings.check(not off.any(), where, f"{key}: is not task_index in row {off.argmax()}")


def column_values(table: Any, key: str, feature: Feature) -> NDArray[Any]:
    """Return the (T, ...) values of a column.

    Errors:
        RoboCacheError: it is missing, has null, or its values do not have the shape and the type of the feature.
    """
    if key not in table.column_names:
        raise RoboCacheError(f"column {printable(key, 60)} is missing")
    pyarrow = need("pyarrow", "export")
    column = table[key].combine_chunks()
    if isinstance(column, pyarrow.ChunkedArray):  # of a table without rows, and of pyarrow before 12
        column = pyarrow.concat_arrays(column.chunks) if column.num_chunks else pyarrow.array([], column.type)
    while pyarrow.types.is_list(column.type) or pyarrow.types.is_large_list(column.type) or _is_fixed(column.type):
        _refuse_null(key, column)
        column = column.flatten()
    _refuse_null(key, column)
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    try:
        values = values.reshape(len(table), *feature.shape)
    except ValueError:
        raise RoboCacheError(
            f"{key}: {len(values)} values in {len(table)} rows; its shape is {list(feature.shape)}"
        ) from None
    if values.dtype.name != feature.dtype:
        raise RoboCacheError(f"{key}: is {values.dtype.name}; the feature is {feature.dtype}")
    return values


def _is_fixed(kind: Any) -> bool:
    return bool(need("pyarrow", "export").types.is_fixed_size_list(kind))


def _refuse_null(key: str, column: Any) -> None:
    if column.null_count:
        raise RoboCacheError(f"{key}: {column.null_count} values are null")


DECODERS = {"libdav1d": "av1", "libaom-av1": "av1"}  # by their name the codec that they decode
TOLERANCE_S = 1e-4  # LeRobot's: a frame further from its row's time is not read


class Span(NamedTuple):
    """The frames of an episode in a video."""

    episode: int
    start_s: float  # time of its first frame in the file
    length: int


def check_video(
    findings: Findings,
    name: str,
    size: tuple[int, int] | None,
    fps: float,
    spans: Sequence[Span],
    stated: Mapping[str, Any] | None = None,
) -> NDArray[np.float64] | None:
    """Check that a video has a frame for every row of the episodes in it, and no other; return the frames' times.

    Frames are counted by their packets, without decoding. With `findings.decode` each of them is decoded.

    Args:
        findings: collects what is wrong.
        name: the file, relative to the dataset.
        size: height and width of the frames, if known.
        fps: rows a second.
        spans: the episodes in the file.
        stated: `video.codec` and `video.pix_fmt`, if they are known.
    """
    av = need("av", "export")
    times = None
    with findings.reading(name, av.FFmpegError, ValueError, IndexError):
        times, decoded, key_frames = _frames(findings, file_in(findings.dataset, name), name, size, stated or {})
        findings.counted["videos"] += 1
        findings.counted["video frames"] += len(times)
        if decoded is not None:
            findings.check(decoded == len(times), name, f"{decoded} of {len(times)} frames can be decoded")
            findings.counted["decoded frames"] += decoded
        _check_spans(findings, name, times, key_frames, fps, spans)
    return times


def _frames(
    findings: Findings, path: DatasetFile, name: str, size: tuple[int, int] | None, stated: Mapping[str, Any]
) -> tuple[NDArray[np.float64], int | None, set[int]]:
    """Return the times of the frames in s, the number that can be decoded if asked for, and which are key frames."""
    times: list[float] = []
    keys: list[bool] = []
    decoded = 0
    with open_container(path) as container:
        stream = container.streams.video[0]
        found = (stream.codec_context.height, stream.codec_context.width)
        if size is not None:
            text = f"frames of {found[0]}x{found[1]}; the feature has {size[0]}x{size[1]}"
            findings.check(found == size, name, text)
        codec = stream.codec_context.name
        for key, value in (("codec", DECODERS.get(codec, codec)), ("pix_fmt", stream.codec_context.pix_fmt)):
            told = stated.get(f"video.{key}")
            findings.check(told in (None, value), name, f"{key} is {value}; the feature has {printable(told, 30)}")
        for packet in container.demux(stream):
            if packet.size and packet.pts is not None:  # the last packet is empty: it flushes the decoder
                times.append(float(packet.pts * packet.time_base))
                keys.append(bool(packet.is_keyframe))
            if findings.decode:
                decoded += sum(not frame.is_corrupt for frame in packet.decode())
    order = np.argsort(times, kind="stable")  # packets are in the order of decoding
    key_frames = {index for index, packet in enumerate(order.tolist()) if keys[packet]}
    return np.array(times)[order], decoded if findings.decode else None, key_frames


def _check_spans(
    findings: Findings,
    name: str,
    times: NDArray[np.float64],
    key_frames: set[int],
    fps: float,
    spans: Sequence[Span],
) -> None:
    rows = sum(span.length for span in spans)
    findings.check(len(times) == rows, name, f"{len(times)} frames; its episodes have {rows} rows")
    if not len(times):
        return
    used = np.zeros(len(times), bool)
    for span in spans:
        wanted = span.start_s + np.arange(span.length) / fps
        nearest = np.clip(np.searchsorted(times, wanted - TOLERANCE_S), 0, len(times) - 1)
        off = np.abs(times[nearest] - wanted) > TOLERANCE_S
        where = f"{name}, episode {span.episode}"
        if off.any():
            first = int(off.argmax())
            findings.add(where, f"{int(off.sum())} of {span.length} rows have no frame, the first is row {first}")
            continue
        findings.check(not used[nearest].any(), where, "shares frames with another episode")
        findings.check(len(np.unique(nearest)) == len(nearest), where, "several rows have one frame")
        used[nearest] = True
    findings.check(0 in key_frames, name, "the first frame is not a key frame, so it cannot be decoded")
