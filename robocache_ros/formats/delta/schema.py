"""The columns of the tables of ticks and episodes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.stats import TopicStats
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.formats import recording as recording_file
from robocache_ros.formats.dataset import Episode, ExportedDataset
from robocache_ros.formats.pieces import ArrayInfo
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.layout import Layout

# The columns of the table of ticks: a struct with a field per number for each stream.
#
# A struct is queried as the layout names its values, `joint_position.panda_joint1`, without quotes, in every engine.
# Files store each field as a column of its own: a query of one joint reads nothing of the others.


TICKS, EPISODES, APPENDS = "ticks", "episodes", "appends"  # the tables, and the folder of files that rows name
RANGE = "episode_range"  # the partitions: the first episode of each range
LAYOUT = "robocache.layout"  # metadata of the column tick_ns
ARRAY = "robocache.array"  # metadata of the columns of voxels and depth images: shape and dtype
PART_BYTES = 16 << 20  # rows that are converted at once
_MARKS = ("valid", "age_ns", "stamp_ns", "sample_age_ms")
_OWN = (RANGE, "episode", "tick", "tick_ns", *_MARKS, "next_reward", "next_success")


def check_names(spec: FusionSpec) -> None:
    """Refuse streams whose columns cannot be distinguished; names of columns do not depend on upper or lower case.

    Errors:
        RoboCacheError: a stream has the name of another column.
    """
    seen = set(_OWN)
    for stream in spec.streams:
        if stream.name.lower() in seen:
            raise RoboCacheError(f"streams.{stream.name}: delta has another column of this name; rename the stream")
        seen.add(stream.name.lower())


def field_names(labels: Sequence[str]) -> list[str]:
    """Return a name that needs no quotes for each label: `position_x` for `position.x`, `v0` for `0`."""
    names: list[str] = []
    for index, label in enumerate(labels):
        name = re.sub(r"\W+", "_", label, flags=re.ASCII) or "v"
        name = f"v{name}" if name[0].isdigit() else name
        names.append(f"{name}_{index}" if name.lower() in [known.lower() for known in names] else name)
    return names


def tick_schema(layout: Layout, media: Mapping[str, ArrayInfo | None]) -> Any:
    """Return the pyarrow schema of the rows.

    Args:
        layout: of the dataset.
        media: the stored streams of images and voxels; None for 8-bit images.
    """
    pyarrow = need("pyarrow", "export")
    names = layout.names
    windows = [stream.name for stream in layout.spec.vectors if stream.rows]
    described = json.dumps(layout.to_dict(), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    fields = [
        pyarrow.field("episode", pyarrow.int64()),
        pyarrow.field("tick", pyarrow.int64()),
        pyarrow.field("tick_ns", pyarrow.int64(), metadata={LAYOUT: described}),
        *(pyarrow.field(stream.name, vector_type(stream)) for stream in layout.spec.vectors),
        *(pyarrow.field(name, place_type(), metadata=_array(info)) for name, info in media.items()),
        pyarrow.field("valid", _by_stream(names, pyarrow.int8())),
        pyarrow.field("age_ns", _by_stream(names, pyarrow.int64())),
        pyarrow.field("stamp_ns", _by_stream(names, pyarrow.int64())),
        *([pyarrow.field("sample_age_ms", _by_stream(windows, pyarrow.list_(pyarrow.float32())))] if windows else []),
        pyarrow.field("next_reward", pyarrow.float32()),
        pyarrow.field("next_success", pyarrow.bool_()),
    ]
    return pyarrow.schema(fields)


def _array(info: ArrayInfo | None) -> dict[str, str]:
    return {ARRAY: json.dumps({"shape": list(info.shape), "dtype": info.dtype})} if info else {}


def vector_type(stream: StreamSpec) -> Any:
    """Return the type of a vector: a struct; of one number without a name, a number; of a window, a list of these."""
    pyarrow = need("pyarrow", "export")
    if is_number(stream.components):
        found = pyarrow.float32()
    else:
        found = _by_stream(field_names(stream.components), pyarrow.float32())
    return pyarrow.list_(found) if stream.rows else found


def is_number(components: Sequence[str]) -> bool:
    """Return whether a vector is one number without a name."""
    return tuple(components) == ("0",)


def undescribed(schema: Any) -> Any:
    """Return a schema without the metadata of its columns, which the log states once and not each file."""
    return need("pyarrow", "export").schema([field.remove_metadata() for field in schema])


def place_type() -> Any:
    """Return the type of an image or of voxels: a file of the dataset, and the frame or the row in it."""
    pyarrow = need("pyarrow", "export")
    return pyarrow.struct([("path", pyarrow.string()), ("row", pyarrow.int64())])


def tick_tables(episode: Episode, number: int, media: Mapping[str, Any], schema: Any) -> Iterator[Any]:
    """Yield the rows of an episode in tables of bounded size.

    Args:
        episode: the episode.
        number: of the episode in the table.
        media: (T,) column of each stored stream of images or voxels.
        schema: of the rows.
    """
    pyarrow = need("pyarrow", "export")
    step = max(1, PART_BYTES // (16 * episode.layout.row_width))
    for start in range(0, episode.length, step):
        rows = slice(start, min(start + step, episode.length))
        columns = {
            "episode": pyarrow.array(np.full(rows.stop - start, number)),
            "tick": pyarrow.array(np.arange(start, rows.stop)),
            "tick_ns": pyarrow.array(np.array(episode.ticks_ns[rows])),
            **{name: column.slice(start, rows.stop - start) for name, column in media.items()},
            **_vectors(episode, rows),
            **_marks(episode, rows, schema),
            "next_reward": _outcome(episode, "reward", episode.rewards[rows]),
            "next_success": _outcome(episode, "success", episode.successes[rows]),
        }
        yield pyarrow.table([columns[name] for name in schema.names], schema=undescribed(schema))


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


def _by_stream(names: Sequence[str], kind: Any) -> Any:
    return need("pyarrow", "export").struct([(name, kind) for name in names])


def _struct(columns: Sequence[Any], names: Sequence[str], missing: NDArray[np.bool_] | None = None) -> Any:
    pyarrow = need("pyarrow", "export")
    fields = [pyarrow.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    mask = None if missing is None else pyarrow.array(missing)
    return pyarrow.StructArray.from_arrays(list(columns), fields=fields, mask=mask)


def done(append: str) -> str:
    """Return the transaction identifier by which the rows of an append are in the table of episodes."""
    return f"{append}/{EPISODES}"


# The rows of the table of episodes: what a recording is, and how good its ticks are.


SHARES = {"aligned": 1, "held": 2, "invalid": 0}  # column -> state of ticks
QUALITY = (*SHARES, "complete", "all_aligned")
DELAYS = ("median", "p95", "max")


def episode_schema(dataset: ExportedDataset) -> Any:
    """Return the pyarrow schema of the rows."""
    arrow = need("pyarrow", "export")
    names = dataset.layout.names
    by_stream = arrow.struct([(name, arrow.float64()) for name in names])
    delays = arrow.struct([(name, arrow.float64()) for name in DELAYS])
    count = arrow.struct([("stream", arrow.string()), ("counter", arrow.string()), ("count", arrow.int64())])
    time = arrow.timestamp("us", "UTC")
    return arrow.schema(
        [
            ("episode", arrow.int64()),
            ("length", arrow.int64()),
            ("recording", arrow.string()),
            ("recording_episode", arrow.int64()),
            ("recording_key", arrow.string()),
            ("task", arrow.string()),
            ("robot", arrow.string()),
            ("success", arrow.bool_()),
            ("start_ns", arrow.int64()),
            ("stop_ns", arrow.int64()),
            ("start", time),
            ("stop", time),
            ("rate_hz", arrow.int64()),
            ("quality", arrow.struct([(name, arrow.float64()) for name in QUALITY])),
            *((name, by_stream) for name in SHARES),
            ("delay_ms", arrow.struct([(name, delays) for name in names])),
            ("counters", arrow.list_(count)),
            ("append", arrow.string()),
        ]
    )


@dataclass(frozen=True)
class OfRecording:
    """What the rows of the episodes of a recording have in common.

    Attributes:
        key: a hash of its files and of the part of it that is used: the same recording has the same key.
        counters: `stream`, `counter` and `count` of each counter.
        delays: of the messages of each stream, from their stamp to their arrival; None without stamps.
    """

    key: str
    counters: list[dict[str, Any]]
    delays: dict[str, dict[str, float] | None]


def recording_of(dataset: ExportedDataset, index: int, episode: Episode) -> OfRecording:
    """Return what is known of a recording of a dataset, given its index and one of its episodes."""
    told = dataset.provenance["recordings"][index]
    loaded, _ = recording_file.load_recording(
        episode.piece, episode.recording, dataset.spec, dataset.options.visibility
    )
    counters = [
        {"stream": stream, "counter": counter, "count": count}
        for stream, counts in sorted(told["counters"].items())
        for counter, count in sorted(counts.items())
    ]
    return OfRecording(recording_key(told), counters, _delays(dataset.spec, loaded.topics))


def recording_key(told: Mapping[str, Any]) -> str:
    """Return the key of a recording, given what the provenance of a dataset states of it."""
    decides = [told["files"], told["start_ns"], told["stop_ns"]]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def episode_row(
    dataset: ExportedDataset, episode: Episode, number: int, recording: OfRecording, append: str
) -> dict[str, Any]:
    """Return the row of an episode.

    Args:
        dataset: the dataset.
        episode: one of its episodes.
        number: of the episode in the table.
        recording: its recording.
        append: the append that it is of.
    """
    names = dataset.layout.names
    ticks, valid = episode.ticks_ns, np.array(episode.valid)
    shares = {name: (valid == state).mean(axis=0) for name, state in SHARES.items()}
    inputs = valid[:, np.flatnonzero(dataset.spec.inputs)]
    quality = {name: float(share[np.flatnonzero(dataset.spec.inputs)].mean()) for name, share in shares.items()}
    quality |= {
        "complete": float((inputs > 0).all(axis=1).mean()),
        "all_aligned": float((inputs == 1).all(axis=1).mean()),
    }
    start_ns, stop_ns = int(ticks[0]), int(ticks[-1])
    return {
        "episode": number,
        "length": episode.length,
        "recording": printable(episode.recording, 1000),
        "recording_episode": episode.number,
        "recording_key": recording.key,
        "task": episode.task,
        "robot": dataset.options.robot_type,
        "success": episode.success,
        "start_ns": start_ns,
        "stop_ns": stop_ns,
        "start": start_ns // 1000,
        "stop": stop_ns // 1000,
        "rate_hz": dataset.rate_hz,
        "quality": quality,
        **{name: dict(zip(names, share.tolist(), strict=True)) for name, share in shares.items()},
        "delay_ms": recording.delays,
        "counters": recording.counters,
        "append": append,
    }


def _delays(spec: FusionSpec, topics: Mapping[str, TopicStats]) -> dict[str, dict[str, float] | None]:
    found: dict[str, dict[str, float] | None] = {}
    for stream in spec.streams:
        topic = topics.get(stream.topic)
        delays = topic.delays_ms if topic else np.zeros(0)
        quantiles = np.quantile(delays, (0.5, 0.95, 1.0)).tolist() if len(delays) else None
        found[stream.name] = dict(zip(DELAYS, quantiles, strict=True)) if quantiles else None
    return found
