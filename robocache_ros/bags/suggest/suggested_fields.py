"""The numeric fields of a message type that is not known by name, as streams can read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from robocache_ros.decode.cdr import types
from robocache_ros.decode.cdr.definitions import EMPTY_FIELD, HEADER
from robocache_ros.decode.cdr.types import Array, Primitive, Struct, Type
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.keys import keys_of

MOST = 16  # fields of one topic
LONGEST = 1024  # values of one field
ELEMENTS = 8  # messages in a list that are read one by one
BYTES = 64  # a longer list of bytes is a file or an image, not a vector
NO_STREAMS = {  # start of a type -> why no stream is suggested
    "tf2_msgs/msg/TFMessage": "a tree of transforms, which no stream reads; /tf_static is read for voxels.frame",
    "sensor_msgs/msg/CameraInfo": "goes with a depth image, as its camera_info",
    "std_msgs/msg/String": "text, not numbers",
    **dict.fromkeys(("rcl_interfaces/", "rosgraph_msgs/", "statistics_msgs/"), "logs and parameters, not a sensor"),
    **dict.fromkeys(("action_msgs/", "lifecycle_msgs/", "bond/"), "events, not a sensor"),
    "diagnostic_msgs/": "a table of texts, not numbers",
    **dict.fromkeys(("visualization_msgs/", "moveit_msgs/msg/Display"), "drawings for a display"),
}
_TIMES = ("builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration")
_NO_MEASUREMENTS = ("time", "timestamp", "stamp", "seq", "sequence", EMPTY_FIELD)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_accepts = keys_of(StreamSpec)["field"].metadata["type"].accepts


class NumericField(NamedTuple):
    """A field and what was seen of it.

    values: (K, D) float64, of K messages. is_float: every value is a floating-point number.
    """

    path: str
    values: np.ndarray[Any, np.dtype[np.float64]]
    is_float: bool
    is_quaternion: bool

    @property
    def dim(self) -> int:
        """Values per message."""
        return int(self.values.shape[1])

    @property
    def is_constant(self) -> bool:
        """Whether all messages that were looked at have the same values."""
        return bool((self.values == self.values[0]).all())


def numeric_fields(message: Struct, messages: Sequence[Any]) -> tuple[list[NumericField], list[str]]:
    """The fields of a type that a stream can read, and the paths of further ones that are left out.

    Left out are single values that do not change while others do, and what is beyond the MOST largest fields.

    Args:
        message: the type.
        messages: some messages of it, with the fields as attributes.
    """
    found = [field for field in _fields(message, "", messages) if _is_readable(field)]
    if any(not field.is_constant for field in found):
        kept = [field for field in found if field.dim > 1 or not field.is_constant]
    else:
        kept = found
    largest = sorted(kept, key=lambda field: -field.dim)[:MOST]
    chosen = [field for field in kept if field in largest] if len(kept) > MOST else kept
    paths = {field.path for field in chosen}
    return chosen, [field.path for field in found if field.path not in paths]


def _fields(struct: Struct, path: str, values: Sequence[Any]) -> Iterator[NumericField]:
    for name, t in struct.fields:
        if name in _NO_MEASUREMENTS or "covariance" in name:
            continue
        below = [getattr(value, name, None) for value in values]
        if all(value is not None for value in below):
            yield from _field(t, f"{path}.{name}".lstrip("."), below)


def _field(t: Type, path: str, values: Sequence[Any]) -> Iterator[NumericField]:
    if isinstance(t, Primitive):
        yield _numbers(path, [t], [[value] for value in values])
    elif isinstance(t, Struct):
        kinds = [field for _, field in t.fields]
        if t.name in (*_TIMES, HEADER):
            return
        if all(isinstance(kind, Primitive) and kind.kind == "f" for kind in kinds):
            names = [name for name, _ in t.fields]
            rows = [[getattr(value, name) for name in names] for value in values]
            yield _numbers(path, kinds, rows, is_quaternion=names == ["x", "y", "z", "w"])
        else:
            yield from _fields(t, path, values)
    elif isinstance(t, (Array, types.Sequence)):
        yield from _list(t, path, values)


def _list(t: Array | types.Sequence, path: str, values: Sequence[Any]) -> Iterator[NumericField]:
    """The field of a list of numbers, or those of the elements of a list of messages."""
    sizes = {len(value) for value in values}
    if len(sizes) != 1:
        return
    size = sizes.pop()
    if isinstance(t.element, Primitive):
        if 0 < size <= (BYTES if t.element.size == 1 and t.element.kind == "u" else LONGEST):
            yield _numbers(path, [t.element], [list(value) for value in values])
    elif isinstance(t.element, Struct) and size <= ELEMENTS:
        for index in range(size):
            yield from _field(t.element, f"{path}[{index}]", [value[index] for value in values])


def _numbers(
    path: str, kinds: Iterable[Type], rows: Sequence[Sequence[Any]], *, is_quaternion: bool = False
) -> NumericField:
    is_float = all(isinstance(kind, Primitive) and kind.kind == "f" for kind in kinds)
    return NumericField(path, np.array(rows, np.float64), is_float, is_quaternion)


def _is_readable(field: NumericField) -> bool:
    """Whether a spec can name it and float32 holds at least one of its values."""
    values = np.abs(field.values[np.isfinite(field.values)])
    return bool(_accepts(field.path) and len(values) and values.max() <= _FLOAT32_MAX)
