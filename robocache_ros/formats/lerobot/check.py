"""What the checks of all versions of LeRobot datasets share: info.json, columns, rows, images and videos."""

from __future__ import annotations

import glob
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.file_limits import group_starts, open_table, read_table, task_texts, values_of
from robocache_ros.formats.check import (
    ColumnFiles,
    ExportedRows,
    Findings,
    FormatCheck,
    TickRows,
    check_finite,
    check_image_statistics,
    compare,
    compare_images,
    exported_rows,
    file_in,
    files_in,
    image_size,
    read_json,
    read_lines,
)
from robocache_ros.formats.lerobot import schema
from robocache_ros.formats.parquet import column_array, column_names
from robocache_ros.formats.pieces import ArrayInfo
from robocache_ros.formats.read import ACTION, AGE, IMAGES, MASK, STAMP, STATE, TICK, VALID, WINDOW
from robocache_ros.formats.statistics import Stats
from robocache_ros.untrusted_files import DatasetFile, filled, open_container

ROLES = {STATE: "observation", ACTION: "action"}  # of the streams in a feature
OWN = "robocache."  # before the names of the columns that this package adds
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
        """Return the path of a file from one of the templates of info.json."""
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
        stated = self.raw.get(key)
        findings.check(stated == found, schema.INFO, f"{key} is {printable(stated, 20)}; the dataset has {found}")

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


def read_info(dataset: Path) -> Info:
    """Read info.json."""
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


def _check_standard_features(findings: Findings, info: Info) -> None:
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


class _LeRobotRows:
    """Checks the rows of a dataset, episode by episode, and of one that this package wrote its own columns."""

    def __init__(self, findings: Findings) -> None:
        self.findings, self.info = findings, read_info(findings.dataset)
        self.tasks: list[str] = []  # by their index
        self.starts = [0]  # the first row of each episode so far, and the number of rows
        self._last: TickRows | None = None  # of the last episode
        self._columns = ColumnFiles()
        self._usable: set[str] | None = None  # columns that every file has, with the shape of their feature
        _check_standard_features(findings, self.info)
        is_own = any(key.startswith(OWN) for key in self.info.features)
        self.exported = exported_rows(findings, schema.PROVENANCE, is_own=is_own)
        if self.exported is not None:
            with findings.reading(schema.PROVENANCE):
                self._check_info(self.exported, read_json(findings.dataset, schema.PROVENANCE))

    @property
    def rows(self) -> int:
        return self.starts[-1]

    def close(self) -> None:
        self._columns.close()

    def statistics(self, first: int = 0) -> dict[str, Stats]:
        """Return the statistics of each column from row `first` on, for the columns that all episodes have."""
        usable = sorted(self._usable or ()) if self.rows else []
        return {key: self._columns.stats(key, first) for key in usable}

    def compare_statistics(
        self, where: str, stored: dict[str, Any], values: dict[str, Stats], *, name: str = ""
    ) -> None:
        """Compare stored statistics with those of the values, by feature; `name` is before the name of each."""
        for key, of_key in values.items():
            if key in stored:
                compare(self.findings, f"{where}: {name}{key}", stored[key], of_key, exact=self.info.own)
            else:
                self.findings.add(where, f"has no {name}{key}")

    def compare_image_statistics(self, where: str, stored: dict[str, Any], *, name: str = "") -> list[str]:
        """Check the stored statistics of the images of an episode; return the features that have some."""
        of_images = [
            key
            for key, feature in self.info.features.items()
            if feature.size and key in stored and not feature.video.get("is_depth_map")
        ]
        for key in of_images:
            check_image_statistics(self.findings, f"{where}: {name}{key}", stored[key])
        return of_images

    def check_unlisted(self, file: str, columns: Iterable[str]) -> None:
        """Report columns that info.json does not list."""
        for extra in sorted(set(columns) - set(self.info.features)):
            self.findings.add(file, f"column {extra} is not a feature of {schema.INFO}")

    def check_rows(self, file: str, table: Any, episode: int, length: int, tasks: Any = None) -> None:
        """Check the rows and the images of an episode, whose length and tasks are those in the metadata."""
        where = f"{file}, episode {episode}"
        self.findings.check(len(table) == length, where, f"{len(table)} rows; the episode has {length}")
        values: dict[str, NDArray[Any]] = {}
        for key, feature in self.info.features.items():
            if feature.dtype not in ("video", "string", "image"):
                with self.findings.reading(where):
                    values[key] = _column(table, key, feature)
        self._check_indices(where, values, episode, len(table))
        self._check_tasks(where, values, episode, tasks)
        for key, column in values.items():
            check_finite(self.findings, where, column, f"{key}: ")
        self._remember({**values, **self._check_own(where, values, episode)})
        self.starts.append(self.rows + len(table))
        self.findings.counted["rows"] += len(table)
        for key, feature in self.info.features.items():
            if feature.dtype == "image":
                self._check_images(where, key, feature, table)

    def _remember(self, values: dict[str, NDArray[Any]]) -> None:
        """Keep the values for the statistics, of the columns that all episodes have."""
        if self._usable is None:
            self._usable = set(values)
        self._usable &= set(values)
        if self._usable and len(next(iter(values.values()))):
            self._columns.append({key: values[key] for key in values if key in self._usable})

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
                off = ~(np.abs(column - np.arange(rows) / self.info.fps) <= TOLERANCE_S)
                meant = f"{off.argmax() / self.info.fps:g} s" if off.any() else ""
            else:
                off = (column < 0) | (column >= len(self.tasks))
                meant = f"0 to {len(self.tasks) - 1}"
            if off.any():
                row = int(off.argmax())
                text = f"{key}: wrong in {int(off.sum())} rows; in row {row} it is {column[row]:g} and must be {meant}"
                self.findings.add(where, text)

    def _check_tasks(self, where: str, values: dict[str, NDArray[Any]], episode: int, tasks: Any) -> None:
        if "task_index" not in values or not isinstance(tasks, list) or not len(values["task_index"]):
            return
        indices = values["task_index"].reshape(-1)
        found = [self.tasks[index] for index in np.unique(indices).tolist() if 0 <= index < len(self.tasks)]
        text = f"task_index: its rows have the task {found[:1]}; the episode has {tasks[:1]}"
        self.findings.check(set(found) == set(map(str, tasks)), where, text)
        if self.exported is not None and episode < len(self.exported.episodes):
            task = tasks[0] if len(tasks) == 1 else tasks
            self.exported.check_value(where, "its task", task, self.exported.episodes[episode].task)
        for key, column in values.items():
            if self.info.own and key.startswith("annotation."):
                off = column.reshape(-1) != indices
                self.findings.check(not off.any(), where, f"{key}: is not task_index in row {off.argmax()}")

    def _check_images(self, where: str, key: str, feature: Feature, table: Any) -> None:
        """Check that every row of an episode has an image of the feature's size; decode it with `findings.decode`.

        A row that repeats the bytes of the row before is not looked at again.
        """
        findings = self.findings
        if key not in table.column_names:
            findings.add(where, f"column {printable(key, 60)} is missing")
            return
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
            with findings.reading(f"{where}, {key}, row {row}"):
                found = image_size(data, decode=findings.decode)
                findings.counted["decoded frames"] += findings.decode
                if feature.size is not None and found != feature.size:
                    findings.add(where, f"{key}: row {row} is {found[0]}x{found[1]}, not {feature.size}")
                    break
            findings.counted["images"] += 1
        stream, rows, exported = key.removeprefix(IMAGES), self._last, self.exported
        if len(findings.found) > before or exported is None or rows is None or stream not in exported.layout.names:
            return
        if rows.valid.shape == (len(same), len(exported.layout.names)):
            exported.check_media(where, rows, exported.spec.stream(stream), same)

    def _check_info(self, exported: ExportedRows, raw: dict[str, Any]) -> None:
        """Compare info.json with the spec."""
        info, names = self.info, list(exported.layout.names)
        exported.check_value(schema.INFO, "fps", info.raw["fps"], exported.spec.rate_hz)
        exported.check_value(schema.INFO, "robot_type", info.raw.get("robot_type"), exported.robot)
        wanted = dict.fromkeys((STAMP, VALID, AGE), names)
        wanted |= {key: exported.labels(role) for key, role in ROLES.items()}
        wanted |= {WINDOW + s.name: list(s.components) for s in exported.spec.vectors if s.rows}
        for key, of_key in wanted.items():
            if key in info.features:
                exported.check_names(f"features.{key}", info.features[key].names, of_key, where=schema.INFO)
            elif of_key:
                self.findings.add(schema.INFO, f"features has no {key}; {schema.PROVENANCE} has streams of it")
        images = raw.get("images")
        for stream, stated in (images if isinstance(images, dict) else {}).items():
            stored = str((stated if isinstance(stated, dict) else {}).get("stored"))
            if stored == "not stored" or stored.startswith("arrays"):
                continue
            self.findings.check(IMAGES + stream in info.features, schema.INFO, f"features has no {IMAGES}{stream}")
            size = exported.spec.stream(stream).image
            found = info.features[IMAGES + stream].size if IMAGES + stream in info.features else None
            if size and size.size and found:
                exported.check_value(schema.INFO, f"features.{IMAGES}{stream}: its size", list(found), list(size.size))

    def _check_own(self, where: str, values: dict[str, NDArray[Any]], episode: int) -> dict[str, NDArray[Any]]:
        """Check the columns that this package adds; return by feature its values with NaN where they are missing."""
        if TICK in values and (VALID not in values or values[VALID].ndim != 2):
            self.findings.add(where, f"has no {VALID} of (rows, streams): it cannot be loaded")
            return {}
        if TICK in values and (AGE not in values or values[AGE].shape != values[VALID].shape):
            self.findings.add(where, f"{AGE} does not have the shape of {VALID}: it cannot be loaded")
            return {}
        missing = {}
        for key, mask in ((WINDOW + key.removeprefix(MASK), mask) for key, mask in values.items() if MASK in key):
            if key in values and values[key].shape[:2] == mask.shape:
                padding = np.broadcast_to(mask[:, :, None] == 0, values[key].shape)
                zero = not values[key][padding].any()
                self.findings.check(zero, where, f"{key}: values are not 0 where there is no sample")
                missing[key] = np.where(padding, np.float32(np.nan), values[key])
        exported = self.exported
        if exported is None or not {TICK, STAMP, VALID, AGE} <= set(values):
            self._last = None
            return missing
        own = {name: values[OWN + name] for name in exported.columns if OWN + name in values}
        columns = {name: of_name.reshape(len(of_name), -1) for name, of_name in own.items()}
        tables = {role: values.get(key) for key, role in ROLES.items()}
        rows = exported.tick_rows(columns, exported.split(tables), rewards=values.get(schema.REWARD))
        self._last = rows
        if exported.check_episode(where, episode, rows):
            with_nan = exported.with_nan(rows, tables)
            missing.update({key: with_nan[role] for key, role in ROLES.items() if role in with_nan})
            self._check_ends(where, values, episode)
        return missing

    def _check_ends(self, where: str, values: dict[str, NDArray[Any]], episode: int) -> None:
        """Check the columns that mark the last row and the success of an episode."""
        assert self.exported is not None
        if schema.DONE in values:
            done = values[schema.DONE].reshape(-1).astype(bool)
            off = done != (np.arange(len(done)) == len(done) - 1)
            text = f"{schema.DONE} is {done[off.argmax()]} in row {off.argmax()}; it is true in the last row only"
            self.findings.check(not off.any(), where, text)
        if schema.SUCCESS in values and episode < len(self.exported.episodes) and len(values[schema.SUCCESS]):
            found, stated = values[schema.SUCCESS].reshape(-1).astype(bool), self.exported.episodes[episode]
            self.exported.check_value(where, f"{schema.SUCCESS} of the last row", bool(found[-1]), bool(stated.success))
            if not self.exported.of_role("success"):
                text = f"{schema.SUCCESS} is true in row {found[:-1].argmax()}; it can be in the last row only"
                self.findings.check(not found[:-1].any(), where, text)

    def check_whole(self, episodes_file: str, episodes: int, tasks_file: str) -> None:
        """Compare totals with the rows, and what this package wrote with its provenance."""
        self.info.check_total(self.findings, "total_frames", self.rows)
        if (exported := self.exported) is not None:
            exported.check_count(episodes, episodes_file)
            exported.check_value(tasks_file, "the list of tasks", self.tasks, exported.tasks)
            if self.rows and STAMP in (self._usable or ()):
                _check_arrays(self.findings, exported, self.starts, self._columns.table(STAMP))


def _has_version(version: str, dataset: Path) -> bool:
    """Return whether the folder is a LeRobot dataset whose version begins so."""
    try:
        raw = read_json(dataset, schema.INFO)
    except (RoboCacheError, OSError):
        return False
    return isinstance(raw, dict) and str(raw.get("codebase_version")).startswith(version)


def check_norm_stats(findings: Findings, info: Info, statistics: dict[str, Any]) -> None:
    """Compare the statistics for openpi with the values. Those of actions may be of chunks of them."""
    if not (info.own and (findings.dataset / schema.NORM_STATS).is_file()):
        return
    with findings.reading(schema.NORM_STATS):
        stated = read_json(findings.dataset, schema.NORM_STATS)["norm_stats"]
        for name, key in schema.OPENPI_KEYS.items():
            where = f"{schema.NORM_STATS}: {name}"
            if name not in stated:
                findings.add(where, "is missing")
            elif key == STATE and key in statistics:
                compare(findings, where, stated[name], statistics[key], exact=True, required=schema.OPENPI_STATS)
    findings.skip(f"actions in {schema.NORM_STATS}: they may be of chunks of actions")


def _check_arrays(findings: Findings, exported: ExportedRows, starts: list[int], stamps_ns: NDArray[np.int64]) -> None:
    """Compare the depth images and voxels in arrays/ with the rows: where episodes start, and (rows, N) stamps."""
    raw = read_json(findings.dataset, schema.PROVENANCE).get("arrays")
    listed = raw if isinstance(raw, dict) else {}
    for stream, stated in listed.items():
        where = f"arrays/{stream}"
        with findings.reading(where):
            if stream not in exported.layout.names:
                raise RoboCacheError(f"{where}: is not a stream of {schema.PROVENANCE}")
            of_stream = np.array(stamps_ns[:, exported.layout.names.index(stream)])
            used = _check_array_files(findings, stream, stated, starts, of_stream)
            lacking = np.flatnonzero((of_stream != 0) & ~used)
            if len(lacking):
                episode = int(np.searchsorted(starts, lacking[0], "right")) - 1
                text = f"{len(lacking)} rows have no array, the first is row {lacking[0] - starts[episode]}"
                findings.add(where, f"{text} of episode {episode}")
    findings.check_listed("arrays/*", [f"arrays/{name}" for name in listed], f"is not in arrays of {schema.PROVENANCE}")


def _check_array_files(
    findings: Findings, stream: str, stated: dict[str, Any], starts: list[int], stamps_ns: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Check the files of a stream; return (rows,) which rows have an array."""
    used = np.zeros(len(stamps_ns), np.bool_)
    size = ArrayInfo(tuple(stated["shape"]), stated["dtype"]).nbytes
    last = 0
    for name in files_in(findings.dataset, f"arrays/{glob.escape(stream)}/*/*.parquet"):
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


def _column(table: Any, key: str, feature: Feature) -> NDArray[Any]:
    """Return the (T, ...) values of a column."""
    if key not in table.column_names:
        raise RoboCacheError(f"column {printable(key, 60)} is missing")
    values = column_array(table[key], key)
    if values.size != len(table) * math.prod(feature.shape):
        raise RoboCacheError(f"{key}: {values.size} values in {len(table)} rows; its shape is {list(feature.shape)}")
    if values.dtype.name != feature.dtype:
        raise RoboCacheError(f"{key}: is {values.dtype.name}; the feature is {feature.dtype}")
    return values.reshape(len(table), *feature.shape)


DECODERS = {"libdav1d": "av1", "libaom-av1": "av1"}  # by their name the codec that they decode
TOLERANCE_S = 1e-4  # LeRobot's: a frame further from its row's time is not read


class Span(NamedTuple):
    """The frames of an episode in a video."""

    episode: int
    start_s: float  # time of its first frame in the file
    length: int


def check_video(findings: Findings, name: str, info: Info, feature: Feature, spans: Sequence[Span]) -> None:
    """Check that a video has a frame for every row of the episodes in it, and no other.

    Frames are counted by their packets, without decoding. With `findings.decode` each of them is decoded.
    """
    with findings.reading(name):
        times, decoded, key_frames = _frames(findings, name, feature, feature.video if info.own else {})
        findings.counted["videos"] += 1
        findings.counted["video frames"] += len(times)
        if decoded is not None:
            findings.check(decoded == len(times), name, f"{decoded} of {len(times)} frames can be decoded")
            findings.counted["decoded frames"] += decoded
        _check_spans(findings, name, times, key_frames, info.fps, spans)


def _frames(
    findings: Findings, name: str, feature: Feature, stated: Mapping[str, Any]
) -> tuple[NDArray[np.float64], int | None, set[int]]:
    """Return the times of the frames in s, the number that can be decoded if asked for, and which are key frames."""
    times: list[float] = []
    keys: list[bool] = []
    decoded, size = 0, feature.size
    with open_container(file_in(findings.dataset, name)) as container:
        stream = container.streams.video[0]
        found = (stream.codec_context.height, stream.codec_context.width)
        if size is not None:
            text = f"frames of {found[0]}x{found[1]}; the feature has {size[0]}x{size[1]}"
            findings.check(found == size, name, text)
        codec = stream.codec_context.name
        for key, value in (("codec", DECODERS.get(codec, codec)), ("pix_fmt", stream.codec_context.pix_fmt)):
            listed = stated.get(f"video.{key}")
            findings.check(listed in (None, value), name, f"{key} is {value}; the feature has {printable(listed, 30)}")
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
        where = f"{name}, episode {span.episode}"
        text = f"{span.length} rows; the video has {len(times)} frames"
        if not findings.check(span.length <= len(times), where, text):
            continue
        wanted = span.start_s + np.arange(span.length) / fps
        nearest = np.clip(np.searchsorted(times, wanted - TOLERANCE_S), 0, len(times) - 1)
        off = np.abs(times[nearest] - wanted) > TOLERANCE_S
        if off.any():
            first = int(off.argmax())
            findings.add(where, f"{int(off.sum())} of {span.length} rows have no frame, the first is row {first}")
            continue
        findings.check(not used[nearest].any(), where, "shares frames with another episode")
        findings.check(len(np.unique(nearest)) == len(nearest), where, "several rows have one frame")
        used[nearest] = True
    findings.check(0 in key_frames, name, "the first frame is not a key frame, so it cannot be decoded")


EPISODES = "meta/episodes/*/*.parquet"
PLACE = ("episode_index", "length", "data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")

Episode = dict[str, Any]  # a row of the episodes' table


def _check_v3(findings: Findings) -> None:
    with closing(_LeRobotRows(findings)) as rows:
        rows.tasks = _tasks_v3(findings, rows)
        episodes = _episodes_v3(findings, rows)
        stored = _EpisodeStatistics(rows)
        listed = set()
        for name, of_file in _by_file(rows, "data_path", "data", episodes):
            listed.add(name)
            with findings.reading(name):
                _check_file(rows, name, file_in(findings.dataset, name), of_file, stored)
        findings.check_listed("data/*/*.parquet", listed, "no episode is in this file")
        rows.check_whole(EPISODES, len(episodes), schema.TASKS)
        _check_v3_statistics(findings, rows, stored)
    for key in rows.info.videos:
        _check_videos(findings, rows, key, episodes)
    videos = [f"videos/{key}" for key in rows.info.videos]
    findings.check_listed("videos/*", videos, f"is not a video of {schema.INFO}")
    if videos and not findings.decode:
        findings.skip("pictures in the videos: frames are counted, not decoded; --decode decodes them")


def _tasks_v3(findings: Findings, rows: _LeRobotRows) -> list[str]:
    table = None
    with findings.reading(schema.TASKS):
        table = read_table(file_in(findings.dataset, schema.TASKS), schema.TASKS, distinct=True)
    if table is None or "task_index" not in table.column_names:
        findings.check(table is None, schema.TASKS, "has no column task_index")
        return []
    text = next((name for name in ("task", "__index_level_0__") if name in table.column_names), None)
    if text is None:
        findings.add(schema.TASKS, "has no index of tasks")
        return []
    found = sorted(zip(values_of(table["task_index"]), task_texts(table[text], schema.TASKS), strict=True))
    findings.check(
        [index for index, _ in found] == list(range(len(found))), schema.TASKS, "task_index is not 0, 1, 2, …"
    )
    findings.check(len({task for _, task in found}) == len(found), schema.TASKS, "a task has two indices")
    rows.info.check_total(findings, "total_tasks", len(found))
    return [task for _, task in found]


def _episodes_v3(findings: Findings, rows: _LeRobotRows) -> list[Episode]:
    """Return the episodes in order, without those that are not usable."""
    read: list[Episode] = []
    for name in files_in(findings.dataset, EPISODES):
        with findings.reading(name):
            path = file_in(findings.dataset, name)
            columns = [column for column in column_names(path) if not column.startswith("stats/")]
            table = read_table(path, name, columns, distinct=True)  # first: it refuses a file that claims too much
            sizes = np.diff(group_starts(path, name)).tolist()
            places = [(group, row) for group, size in enumerate(sizes) for row in range(size)]
            found = zip(*map(values_of, table.columns), strict=True)
            read += [
                dict(zip(columns, row, strict=True), file=name, group=group, row=number)
                for row, (group, number) in zip(found, places, strict=True)
            ]
    findings.check(bool(read), EPISODES, "there are no episodes")
    episodes = []
    known, row = set(rows.tasks), 0
    for number, episode in enumerate(read):
        where = f"{episode['file']}, episode {number}"
        if lacking := [key for key in PLACE if not isinstance(episode.get(key), int)]:
            findings.add(where, f"has no integer {lacking[0]}")
            continue
        findings.check(episode["episode_index"] == number, where, f"episode_index is {episode['episode_index']}")
        span = (episode["dataset_from_index"], episode["dataset_to_index"])
        wanted = (row, row + episode["length"])
        findings.check(span == wanted, where, f"rows {span[0]} to {span[1]}; they must be {wanted[0]} to {wanted[1]}")
        findings.check(episode["length"] > 0, where, "has no rows")
        unknown = [task for task in episode.get("tasks") or () if task not in known]
        findings.check(not unknown, where, f"its task {unknown[:1]} is not in {schema.TASKS}")
        row += episode["length"]
        episodes.append(episode)
    rows.info.check_total(findings, "total_episodes", len(read))
    rows.info.check_splits(findings, len(read))
    findings.counted["episodes"] += len(episodes)
    return episodes


def _check_file(
    rows: _LeRobotRows, name: str, path: DatasetFile, episodes: list[Episode], stored: _EpisodeStatistics
) -> None:
    """Check the rows of a data file, in which its episodes are contiguous and in order."""
    findings, pyarrow = rows.findings, need("pyarrow", "export")
    with open_table(path, name) as file:
        rows.check_unlisted(name, file.schema_arrow.names)
        total, stated = sum(episode["length"] for episode in episodes), file.metadata.num_rows
        findings.check(stated == total, name, f"{stated} rows; its episodes have {total}")
        batches = (file.read_row_group(group) for group in range(file.num_row_groups))
        rest = file.schema_arrow.empty_table()
        for episode in episodes:
            while len(rest) < episode["length"] and (batch := next(batches, None)) is not None:
                rest = pyarrow.concat_tables([rest, batch])
            table, rest = rest.slice(0, episode["length"]), rest.slice(episode["length"])
            first = rows.rows
            rows.check_rows(name, table, episode["episode_index"], episode["length"], episode.get("tasks"))
            with findings.reading(episode["file"]):
                stored.check(episode, first)


def _check_v3_statistics(findings: Findings, rows: _LeRobotRows, of_episodes: _EpisodeStatistics) -> None:
    if not (findings.dataset / schema.STATS).exists():
        findings.add(schema.STATS, "is missing: policies normalise with it")
        return
    with findings.reading(schema.STATS):
        stored, values = read_json(findings.dataset, schema.STATS), rows.statistics()
        rows.compare_statistics(schema.STATS, stored, values)
        for key, of_key in of_episodes.images.items():
            if key in stored:
                compare_images(findings, f"{schema.STATS}: {key}", stored[key], of_key)
        check_norm_stats(findings, rows.info, values)
        images = [key for key, feature in rows.info.features.items() if feature.size]
        if images:
            findings.check(all(key in stored for key in images), schema.STATS, "has no statistics of an image feature")
            findings.skip("statistics of images: they are of a sample of the pixels")
        if not rows.info.own:
            findings.skip("quantiles: LeRobot merges those of episodes, which is not exact")


def _check_videos(findings: Findings, rows: _LeRobotRows, key: str, episodes: list[Episode]) -> None:
    listed, info = set(), rows.info
    for name, of_file in _by_file(rows, "video_path", f"videos/{key}", episodes, video_key=key):
        listed.add(name)
        try:
            spans = [Span(e["episode_index"], float(e[f"videos/{key}/from_timestamp"]), e["length"]) for e in of_file]
            for e, span in zip(of_file, spans, strict=True):
                stop, wanted = float(e[f"videos/{key}/to_timestamp"]), span.start_s + span.length / info.fps
                text = f"videos/{key}/to_timestamp is {stop:g}; its rows end at {wanted:g} s"
                findings.check(abs(stop - wanted) <= TOLERANCE_S, f"{e['file']}, episode {span.episode}", text)
        except (KeyError, TypeError, ValueError):
            findings.add(EPISODES, f"an episode has no videos/{key}/from_timestamp and to_timestamp")
            continue
        check_video(findings, name, info, info.videos[key], spans)
    findings.check_listed(f"videos/{glob.escape(key)}/*/*", listed, "no episode is in this file")


class _EpisodeStatistics:
    """The statistics of each episode, in the episodes' table."""

    def __init__(self, rows: _LeRobotRows) -> None:
        self._rows = rows
        self._read: tuple[tuple[str, int], list[dict[str, Any]]] = (("", 0), [])
        self.images: dict[str, list[dict[str, Any]]] = defaultdict(list)  # by feature, those of each episode

    def check(self, episode: Episode, first: int) -> None:
        """Compare the statistics of an episode with those of its values, which begin at row `first`."""
        stored = self._stored(episode)
        where = f"{episode['file']}, episode {episode['episode_index']}"
        values = self._rows.statistics(first) if self._rows.rows > first else {}
        if not self._rows.info.own:  # others may lack some
            values = {key: of_key for key, of_key in values.items() if key in stored}
        self._rows.compare_statistics(where, stored, values, name="stats/")
        for key in self._rows.compare_image_statistics(where, stored, name="stats/"):
            self.images[key].append(stored[key])

    def _stored(self, episode: Episode) -> dict[str, dict[str, Any]]:
        """Return the statistics in the table by feature and name; read a row group at a time."""
        place = episode["file"], episode["group"]
        if self._read[0] != place:
            with open_table(file_in(self._rows.findings.dataset, place[0]), place[0]) as file:
                columns = [column for column in file.schema_arrow.names if column.startswith("stats/")]
                table = file.read_row_group(place[1], columns=columns) if columns else None
            self._read = place, table.to_pylist() if table is not None else []
        found: dict[str, dict[str, Any]] = defaultdict(dict)
        for column, value in self._read[1][episode["row"]].items() if self._read[1] else ():
            key, _, name = column.removeprefix("stats/").rpartition("/")
            found[key][name] = value
        return found


def _by_file(
    rows: _LeRobotRows, template: str, prefix: str, episodes: list[Episode], **names: str
) -> Iterator[tuple[str, list[Episode]]]:
    """Return each file with the episodes in it, in order of the first episode."""
    files: dict[tuple[Any, Any], list[Episode]] = defaultdict(list)
    for episode in episodes:
        files[episode.get(f"{prefix}/chunk_index"), episode.get(f"{prefix}/file_index")].append(episode)
    for (chunk, file), of_file in files.items():
        if not isinstance(chunk, int) or not isinstance(file, int):
            raise RoboCacheError(f"{EPISODES}: an episode has no {prefix}/chunk_index and file_index")
        yield rows.info.path(template, chunk_index=chunk, file_index=file, **names), of_file


LEROBOT_V3 = FormatCheck("LeRobot v3.0", partial(_has_version, "v3"), _check_v3)


COLUMNS = {"state": STATE, "action": ACTION}  # where the values are, unless original_key says otherwise


def check_gr00t_statistics(findings: Findings, rows: _LeRobotRows) -> None:
    """Compare meta/stats.json with the values, if it exists."""
    if not (findings.dataset / schema.STATS).exists():
        return
    with findings.reading(schema.STATS):
        stored = read_json(findings.dataset, schema.STATS)
        info, values = rows.info, rows.statistics()
        for key, stated in stored.items():
            lacking = [name for name in schema.GR00T_STATS if name not in stated]
            findings.check(not lacking, schema.STATS, f"{key} has no {', '.join(lacking)}: GR00T overwrites the file")
            if key in values:
                compare(findings, f"{schema.STATS}: {key}", stated, values[key], exact=info.own)
        for key, feature in info.features.items():
            if feature.dtype.startswith("float"):
                findings.check(key in stored, schema.STATS, f"has no {key}: GR00T computes and overwrites the file")


def check_modality(findings: Findings, info: Info, exported: ExportedRows | None) -> None:
    """Check that meta/modality.json names columns and videos of the dataset, and each stream of an export."""
    if not (findings.dataset / schema.MODALITY).exists():
        findings.skip(f"{schema.MODALITY}: there is none; GR00T needs it")
        return
    with findings.reading(schema.MODALITY):
        modality = read_json(findings.dataset, schema.MODALITY)
        for kind, column in COLUMNS.items():
            for name, part in modality.get(kind, {}).items():
                _check_part(findings, info, f"{kind}.{name}", part, part.get("original_key") or column)
            if exported is not None:
                _check_streams(exported, kind, modality.get(kind, {}))
        for name, part in modality.get("video", {}).items():
            key = part.get("original_key") or IMAGES + name
            findings.check(key in info.videos, schema.MODALITY, f"video.{name}: {key} is not a video of the dataset")
        for name, part in (modality.get("annotation") or {}).items():
            key = part.get("original_key") or f"annotation.{name}"
            findings.check(
                key in info.features, schema.MODALITY, f"annotation.{name}: {key} is not a column of the dataset"
            )


def _check_streams(exported: ExportedRows, kind: str, parts: dict[str, Any]) -> None:
    start = 0
    for stream in exported.of_role("observation" if kind == "state" else "action"):
        part = parts.get(stream.name) or {}
        span = [part.get("start"), part.get("end")]
        exported.check_value(schema.MODALITY, f"{kind}.{stream.name}", span, [start, start + stream.width])
        start += stream.width


def _check_part(findings: Findings, info: Info, name: str, part: dict[str, Any], column: str) -> None:
    feature = info.features.get(column)
    if feature is None:
        findings.add(schema.MODALITY, f"{name}: {column} is not a column of the dataset")
        return
    start, end = part.get("start"), part.get("end")
    within = isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= feature.shape[0]
    text = f"{name}: {start} to {end} are not columns of {column}, which has {feature.shape[0]}"
    findings.check(within, schema.MODALITY, text)


def _check_v21(findings: Findings) -> None:
    with closing(_LeRobotRows(findings)) as rows:
        info = rows.info
        size = info.raw.get("chunks_size", 1000)
        text = f"chunks_size is {printable(size, 20)}; it must be a positive integer"
        if not findings.check(isinstance(size, int) and size > 0, schema.INFO, text):
            size = 1000
        version = info.raw["codebase_version"]
        text = f"codebase_version is {version}; LeRobot's readers of v2.1 refuse others"
        findings.check(version == schema.VERSION_V21, schema.INFO, text)
        tasks = read_lines(findings.dataset, schema.TASKS_V21)
        indices = [task.get("task_index") for task in tasks]
        findings.check(indices == list(range(len(tasks))), schema.TASKS_V21, "task_index is not 0, 1, 2, …")
        info.check_total(findings, "total_tasks", len(tasks))
        rows.tasks = [str(task.get("task")) for task in tasks]
        episodes = _episodes_v21(findings, rows, size)
        _check_episodes(findings, rows, episodes, size)
        rows.check_whole(schema.EPISODES_V21, len(episodes), schema.TASKS_V21)
        check_gr00t_statistics(findings, rows)
        check_norm_stats(findings, info, rows.statistics())
        check_modality(findings, info, rows.exported)
    listed = set()
    for key, feature in info.videos.items():
        for episode, (length, _) in enumerate(episodes):
            place = {"episode_chunk": episode // size, "episode_index": episode}
            name = info.path("video_path", **place, video_key=key)
            listed.add(name)
            check_video(findings, name, info, feature, [Span(episode, 0.0, length)])
    findings.check_listed("videos/*/*/*.mp4", listed, "is not a video of an episode")
    if info.videos and not findings.decode:
        findings.skip("pictures in the videos: frames are counted, not decoded; --decode decodes them")
    if not (findings.dataset / schema.STATS).exists():
        findings.skip(f"{schema.STATS}: there is none; GR00T computes it")


def _episodes_v21(findings: Findings, rows: _LeRobotRows, chunk: int) -> list[tuple[int, Any]]:
    """Return the length and the tasks of each episode."""
    info, found = rows.info, []
    for number, row in enumerate(read_lines(findings.dataset, schema.EPISODES_V21)):
        where = f"{schema.EPISODES_V21}, line {number + 1}"
        index, length = row.get("episode_index"), row.get("length")
        findings.check(index == number, where, f"episode_index is {index}; it must be {number}")
        if not isinstance(length, int) or length < 1:
            findings.add(where, f"length is {length}; it must be a positive integer")
            length = 0
        unknown = [task for task in row.get("tasks") or () if task not in rows.tasks]
        findings.check(not unknown, where, f"its task {unknown[:1]} is not in {schema.TASKS_V21}")
        found.append((length, row.get("tasks")))
    info.check_total(findings, "total_episodes", len(found))
    info.check_splits(findings, len(found))
    info.check_total(findings, "total_chunks", -(-len(found) // chunk))
    info.check_total(findings, "total_videos", len(found) * len(info.videos))
    findings.counted["episodes"] += len(found)
    return found


def _check_episodes(findings: Findings, rows: _LeRobotRows, episodes: list[tuple[int, Any]], chunk: int) -> None:
    stored: list[dict[str, Any]] = []
    with findings.reading(schema.EPISODES_STATS):
        stored = read_lines(findings.dataset, schema.EPISODES_STATS)
        text = f"{len(stored)} of {len(episodes)} episodes"
        findings.check(len(stored) == len(episodes), schema.EPISODES_STATS, text)
    listed = set()
    for episode, (length, tasks) in enumerate(episodes):
        name = rows.info.path("data_path", episode_chunk=episode // chunk, episode_index=episode)
        listed.add(name)
        with findings.reading(name):
            table = read_table(file_in(findings.dataset, name), name)
            rows.check_unlisted(name, table.column_names)
            first = rows.rows
            rows.check_rows(name, table, episode, length, tasks)
            if episode < len(stored):
                where, of_features = f"{schema.EPISODES_STATS}, episode {episode}", stored[episode].get("stats")
                if stored[episode].get("episode_index") != episode or not isinstance(of_features, dict):
                    findings.add(where, "has another episode_index, or no stats")
                    continue
                rows.compare_statistics(where, of_features, rows.statistics(first))
                rows.compare_image_statistics(where, of_features)
    findings.check_listed("data/*/*.parquet", listed, "is not a file of an episode; LeRobot reads it as one")


LEROBOT_V21 = FormatCheck("LeRobot v2.1", partial(_has_version, "v2"), _check_v21)
