"""Write a dataset of Delta Lake tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.stats import TopicStats
from robocache_ros.errors import printable
from robocache_ros.extras import need
from robocache_ros.formats import recording as recording_file
from robocache_ros.formats.dataset import Episode, ExportedDataset, StoredMedia
from robocache_ros.formats.delta.log import (
    APPENDS,
    DELAYS,
    EPISODES,
    EPISODES_NUMBERED,
    TICKS,
    TransactionLog,
    check_names,
    done,
    episode_schema,
    field_names,
    is_number,
    make_repeatable,
    place_type,
    recording_key,
    tick_schema,
    vector_type,
    write_data_files,
)
from robocache_ros.formats.parquet import CHUNK_FILES, DATA_FILE_MB, column, write_table
from robocache_ros.formats.pictures import VIDEO, video_or_png
from robocache_ros.formats.pieces import runs
from robocache_ros.formats.read import IMAGES, STATES
from robocache_ros.formats.video import VIDEO_FILE_MB, VIDEO_FILES, join_video, joined_files
from robocache_ros.formats.write import write_provenance
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.dataset import DatasetOptions

BLOBS_PATH = "{kind}/{name}/chunk-{{chunk_index:03d}}/file-{{file_index:03d}}.parquet"
Place = tuple[str, int]  # of an episode: the file, relative to the dataset, and its first frame or row in it


class _MediaFiles:
    """Writes the images and arrays of a dataset to files `below` a folder, and tells where those of a tick are."""

    def __init__(self, dataset: ExportedDataset, encodings: dict[str, str], folder: Path, below: str) -> None:
        self._dataset, self._encodings = dataset, encodings
        self._folder, self._below = folder, below
        self.names = [stream.name for stream in dataset.spec.media if stream.name in {**encodings, **dataset.arrays}]
        self._places: dict[str, list[Place]] = {}  # by episode

    def write(self) -> None:
        for name in self.names:
            write = self._write_video if self._encodings.get(name) in VIDEO else self._write_blobs
            self._places[name] = list(write(name))

    def columns(self, episode: Episode) -> dict[str, Any]:
        """Return a column for each stream: the file and the row of each tick, null if there is none."""
        pyarrow = need("pyarrow", "export")
        found = {}
        for name in self.names:
            path, first = self._places[name][episode.index]
            if self._encodings.get(name) in VIDEO:
                rows, present = first + np.arange(episode.length), np.ones(episode.length, bool)
            else:
                numbers, present = _numbered(self._media(episode, name).samples)
                rows = first + numbers
            columns = [pyarrow.repeat(path, episode.length), pyarrow.array(rows)]
            mask = pyarrow.array(~present)
            found[name] = pyarrow.StructArray.from_arrays(columns, fields=list(place_type()), mask=mask)
        return found

    def _write_video(self, name: str) -> Iterator[Place]:
        codec, episodes = self._encodings[name], self._dataset.episodes
        files = joined_files([episode.video_part(name, codec) for episode in episodes], VIDEO_FILE_MB)
        for number, group in enumerate(files):
            chunk, file = divmod(number, CHUNK_FILES)
            path = VIDEO_FILES.format(video_key=IMAGES + name, chunk_index=chunk, file_index=file)
            parts = ((each.video(name, codec), each.length) for each in map(episodes.__getitem__, group))
            for first in join_video(self._folder / self._below / path, parts, self._dataset.rate_hz):
                yield f"{self._below}/{path}", first

    def _write_blobs(self, name: str) -> Iterator[Place]:
        """Write each distinct image (PNG) or array of an episode as a row."""
        path = BLOBS_PATH.format(kind="images" if name in self._encodings else "arrays", name=name)
        written: list[int] = []  # rows of each episode

        def counted(episode: Episode) -> Iterator[Any]:
            written.append(0)
            for part in self._blobs(episode, name):
                written[-1] += len(part)
                yield part

        episodes = map(counted, self._dataset.episodes)
        places = write_table(self._folder / self._below, path, episodes, DATA_FILE_MB, CHUNK_FILES)
        last, rows = "", 0
        for (chunk, file), count in zip(places, written, strict=True):
            found = f"{self._below}/{path.format(chunk_index=chunk, file_index=file)}" if count else last
            if found != last:
                last, rows = found, 0
            yield found, rows
            rows += count

    def _blobs(self, episode: Episode, name: str) -> Iterator[Any]:
        pyarrow = need("pyarrow", "export")
        stamps = episode.stamps_ns[:, episode.layout.names.index(name)]
        media = self._media(episode, name)
        for start, _, sample in runs(media.samples):
            if sample >= 0:
                data = pyarrow.array([media[start]], pyarrow.binary())
                yield pyarrow.table({"stamp_ns": column(np.array(stamps[start : start + 1])), "data": data})

    def _media(self, episode: Episode, name: str) -> StoredMedia:
        encoding = self._encodings.get(name)
        return episode.images(name, encoding) if encoding else episode.arrays(name)


def _numbered(samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return for (T,) samples the number of the run of each tick, without runs of -1, and which are not -1."""
    present = samples >= 0
    begins = present & (np.diff(samples, prepend=-1) != 0)
    return np.cumsum(begins) - 1, present


PART_BYTES = 16 << 20  # rows that are converted at once


def tick_tables(episode: Episode, media: Mapping[str, Any], schema: Any) -> Iterator[Any]:
    """Yield the rows of an episode in tables of bounded size, given a column for each stream of images or voxels."""
    pyarrow = need("pyarrow", "export")
    # The metadata of the columns are stated once, by the log, and not by each file.
    bare = pyarrow.schema([field.remove_metadata() for field in schema])
    step = max(1, PART_BYTES // (16 * episode.layout.row_width))
    for start in range(0, episode.length, step):
        rows = slice(start, min(start + step, episode.length))
        columns = {
            "episode": pyarrow.array(np.full(rows.stop - start, episode.index)),
            "tick": pyarrow.array(np.arange(start, rows.stop)),
            "tick_ns": pyarrow.array(np.array(episode.ticks_ns[rows])),
            **{name: column.slice(start, rows.stop - start) for name, column in media.items()},
            **_vectors(episode, rows),
            **_marks(episode, rows, schema),
            "next_reward": _outcome(episode, "reward", episode.rewards[rows]),
            "next_success": _outcome(episode, "success", episode.successes[rows]),
        }
        yield pyarrow.table([columns[name] for name in schema.names], schema=bare)


def _vectors(episode: Episode, rows: slice) -> dict[str, Any]:
    """Return the columns of the vectors: null in ticks without a value, which aggregates leave out."""
    pyarrow = need("pyarrow", "export")
    found = {}
    for stream in episode.layout.spec.vectors:
        values, missing = episode.vector(stream.name)[rows], ~episode.has(stream.name)[rows]
        if stream.rows:
            ages = episode.window_ages_ms(stream.name)[rows]
            items = _numbers(values[ages >= 0], stream, None)  # padding is left out
            found[stream.name] = _lists(ages >= 0, items)
        else:
            found[stream.name] = _numbers(values, stream, missing)
        assert found[stream.name].type == vector_type(stream), pyarrow.__version__
    return found


def _numbers(values: NDArray[np.float32], stream: StreamSpec, missing: NDArray[np.bool_] | None) -> Any:
    """Convert (K, D) values to a column, null where they are missing."""
    pyarrow = need("pyarrow", "export")
    columns = [pyarrow.array(np.ascontiguousarray(column), mask=missing) for column in values.T]
    return columns[0] if is_number(stream.components) else _struct(columns, field_names(stream.components), missing)


def _lists(present: NDArray[np.bool_], items: Any) -> Any:
    """Convert the items of (T, n) samples that are present to a column of lists."""
    ends = np.cumsum(present.sum(axis=1), dtype=np.int32)
    return need("pyarrow", "export").ListArray.from_arrays(np.concatenate([np.zeros(1, np.int32), ends]), items)


def _marks(episode: Episode, rows: slice, schema: Any) -> dict[str, Any]:
    """Return `valid`, `age_ns` and `stamp_ns` by stream, the latter null without a value, and ages of samples."""
    pyarrow = need("pyarrow", "export")
    names = episode.layout.names
    valid = episode.valid[rows]
    found = {"valid": _struct([pyarrow.array(np.ascontiguousarray(c).view(np.int8)) for c in valid.T], names)}
    for name, values in (("age_ns", episode.age_ns[rows]), ("stamp_ns", episode.stamps_ns[rows])):
        columns = [
            pyarrow.array(np.ascontiguousarray(column), mask=state == 0)
            for column, state in zip(values.T, valid.T, strict=True)
        ]
        found[name] = _struct(columns, names)
    if "sample_age_ms" in schema.names:
        windows = [stream.name for stream in episode.layout.spec.vectors if stream.rows]
        ages = [episode.window_ages_ms(name)[rows] for name in windows]
        found["sample_age_ms"] = _struct([_lists(of >= 0, pyarrow.array(of[of >= 0])) for of in ages], windows)
    return found


def _outcome(episode: Episode, role: str, values: NDArray[Any]) -> Any:
    """Return the reward or the success of each row; null if nothing is known of it."""
    roles = {stream.role for stream in episode.layout.spec.vectors}
    known = role in roles or episode.success is not None
    return need("pyarrow", "export").array(np.ascontiguousarray(values), mask=np.full(len(values), not known))


def _struct(columns: Sequence[Any], names: Sequence[str], missing: NDArray[np.bool_] | None = None) -> Any:
    pyarrow = need("pyarrow", "export")
    fields = [pyarrow.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    mask = None if missing is None else pyarrow.array(missing)
    return pyarrow.StructArray.from_arrays(list(columns), fields=fields, mask=mask)


def episode_row(dataset: ExportedDataset, episode: Episode, of_recording: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of an episode, given what is the same in all rows of its recording."""
    names, inputs = dataset.layout.names, np.flatnonzero(dataset.spec.inputs)
    ticks, valid = episode.ticks_ns, np.array(episode.valid)
    shares = {name: (valid == state).mean(axis=0) for name, state in STATES.items()}
    start_ns, stop_ns = int(ticks[0]), int(ticks[-1])
    return {
        "episode": episode.index,
        "length": episode.length,
        "recording": printable(episode.recording, 1000),
        "recording_episode": episode.number,
        "task": episode.task,
        "robot": dataset.options.robot_type,
        "success": episode.success,
        "start_ns": start_ns,
        "stop_ns": stop_ns,
        "start": start_ns // 1000,
        "stop": stop_ns // 1000,
        "rate_hz": dataset.rate_hz,
        "quality": recording_file.quality(valid[:, inputs]),
        **{name: dict(zip(names, share.tolist(), strict=True)) for name, share in shares.items()},
        **of_recording,
    }


def _of_recording(dataset: ExportedDataset, index: int, episode: Episode) -> dict[str, Any]:
    """Return what the rows of the episodes of a recording have in common, given one of them.

    The key is a hash of its files and of the part of it that is used. Delays are of the messages of each stream, from
    their stamp to their arrival; None without stamps.
    """
    stated = dataset.provenance["recordings"][index]
    spec, visibility = dataset.spec, dataset.options.visibility
    loaded, _ = recording_file.load_recording(episode.piece, episode.recording, spec, visibility)
    counters = [
        {"stream": stream, "counter": counter, "count": count}
        for stream, counts in sorted(stated["counters"].items())
        for counter, count in sorted(counts.items())
    ]
    return {"recording_key": recording_key(stated), "delay_ms": _delays(spec, loaded.topics), "counters": counters}


def _delays(spec: FusionSpec, topics: Mapping[str, TopicStats]) -> dict[str, dict[str, float] | None]:
    found: dict[str, dict[str, float] | None] = {}
    for stream in spec.streams:
        topic = topics.get(stream.topic)
        delays = topic.delays_ms if topic else np.zeros(0)
        quantiles = np.quantile(delays, (0.5, 0.95, 1.0)).tolist() if len(delays) else None
        found[stream.name] = dict(zip(DELAYS, quantiles, strict=True)) if quantiles else None
    return found


def _episode_rows(dataset: ExportedDataset, append: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of each episode, and its row as a table."""
    table, schema = need("pyarrow", "export").Table, episode_schema(dataset.layout.names)
    last, found = -1, {}
    for episode, stated in zip(dataset.episodes, dataset.provenance["episodes"], strict=True):
        if stated["recording"] != last:
            last = stated["recording"]
            found = {**_of_recording(dataset, last, episode), "append": append}
        yield episode.index, [table.from_pylist([episode_row(dataset, episode, found)], schema=schema)]


def _identity(dataset: ExportedDataset) -> str:
    """Return the name of an append: a hash of the recordings and of all that decides what is written of them."""
    stated = dataset.provenance
    keys = [recording_key(recording) for recording in stated["recordings"]]
    options = {name: value for name, value in asdict(dataset.options).items() if name != "formats"}
    episodes = [(keys[about["recording"]], about) for about in stated["episodes"]]
    decides = {"layout": stated["layout"], "options": options, "device": stated["device"], "episodes": episodes}
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]


# Delta Lake: a table with a row a tick, and one with a row an episode (https://delta.io), for queries.
#
# ticks/     _delta_log/, and parquet in episode_range=<first episode>/
# episodes/  the same; readers find a dataset by this folder
# appends/   a folder for each export to the tables: robocache.json (the provenance), and the videos, images, voxels and
#            depth images that rows of ticks name


class _DeltaFormat:
    """Delta Lake tables."""

    name = "delta"
    title = "Delta Lake tables of ticks and episodes"
    entry = EPISODES

    def check(self, spec: FusionSpec, options: DatasetOptions) -> None:
        """Refuse streams with the name of another column."""
        need("deltalake", "fleet")
        check_names(spec)

    def encoding(self, stream: StreamSpec, options: DatasetOptions) -> str | None:
        """Store images as LeRobot does: as video, or as PNG."""
        return video_or_png(stream, options)

    def write(self, dataset: ExportedDataset, folder: Path) -> None:
        """Write both tables, each with one commit. Equal pieces in equal order give equal bytes, also of the logs."""
        append, encodings = _identity(dataset), dataset.encodings(video_or_png)
        (folder / APPENDS / append).mkdir(parents=True)
        write_provenance(folder / APPENDS / append / "robocache.json", dataset, encodings)
        media = _MediaFiles(dataset, encodings, folder, f"{APPENDS}/{append}")
        media.write()
        ticks = tick_schema(dataset.layout, {name: dataset.arrays.get(name) for name in media.names})

        def tick_rows(episode: Episode) -> Iterator[Any]:
            yield from tick_tables(episode, media.columns(episode), ticks)

        of_ticks = ((episode.index, tick_rows(episode)) for episode in dataset.episodes)
        tables: tuple[tuple[str, Any, Iterator[tuple[int, Iterable[Any]]], dict[str, int]], ...] = (
            (TICKS, ticks, of_ticks, {append: 0}),
            (
                EPISODES,
                episode_schema(dataset.layout.names),
                _episode_rows(dataset, append),
                {EPISODES_NUMBERED: len(dataset.episodes), done(append): 0},
            ),
        )
        # The time of the last recording, and not of the export.
        time_ms = max(0, *(recording["stop_ns"] // 1_000_000 for recording in dataset.provenance["recordings"]))
        for table, schema, rows, transactions in tables:
            files = write_data_files(folder / table, rows)
            TransactionLog(str(folder / table), schema).create(files, time_ms, transactions)
            make_repeatable(folder / table, f"{append}/{table}", time_ms)


DELTA = _DeltaFormat()
