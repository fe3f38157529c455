"""The columns of the tables of ticks and episodes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.formats.pieces import ArrayInfo
from robocache_ros.formats.schema import BY_STREAM
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
_MARKS = (*BY_STREAM, "sample_age_ms")
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


def _by_stream(names: Sequence[str], kind: Any) -> Any:
    return need("pyarrow", "export").struct([(name, kind) for name in names])


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


def done(append: str) -> str:
    """Return the transaction identifier by which the rows of an append are in the table of episodes."""
    return f"{append}/{EPISODES}"


SHARES = {"aligned": 1, "held": 2, "invalid": 0}  # column -> state of ticks
QUALITY = (*SHARES, "complete", "all_aligned")
DELAYS = ("median", "p95", "max")


def episode_schema(names: Sequence[str]) -> Any:
    """Return the pyarrow schema of the rows, given the names of the streams."""
    arrow = need("pyarrow", "export")
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


def recording_key(stated: Mapping[str, Any]) -> str:
    """Return the key of a recording, given what the provenance of a dataset states of it."""
    decides = [stated["files"], stated["start_ns"], stated["stop_ns"]]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
