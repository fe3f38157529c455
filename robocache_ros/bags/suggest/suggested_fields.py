"""Detects the numeric fields of a message type without predefined fields, in the form that streams read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from robocache_ros.bags.suggest.known_types import MEASURED_FIELDS
from robocache_ros.decode.cdr import types
from robocache_ros.decode.cdr.definitions import EMPTY_FIELD, HEADER
from robocache_ros.decode.cdr.types import Array, Primitive, Struct, Text, Type, parse_path
from robocache_ros.decode.decoder import nearest_header
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.keys import keys_of

MOST = 16  # maximum number of streams per topic
LONGEST = 1024  # maximum number of values of one field
ELEMENTS = 64  # maximum number of messages in a list that are read individually
BYTES = 64  # a longer list of bytes is a file or an image, not a vector
NO_STREAMS = {  # type prefix -> reason why no stream is suggested
    "sensor_msgs/msg/CameraInfo": "goes with a depth image, as its camera_info",
    "std_msgs/msg/String": "text, not numbers",
    **dict.fromkeys(("rcl_interfaces/", "rosgraph_msgs/", "statistics_msgs/"), "logs and parameters, not a sensor"),
    **dict.fromkeys(("action_msgs/", "lifecycle_msgs/", "bond/"), "events, not a sensor"),
    "diagnostic_msgs/": "a table of text, not numbers",
    **dict.fromkeys(("visualization_msgs/", "moveit_msgs/msg/Display"), "markers for display"),
}
_TIMES = ("builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration")
# Words in the names of fields that are times, counters or descriptions of a measurement, but no measurements.
_NO_MEASUREMENTS = re.compile(
    r"covariance|(^|_)(variance|cov|time|times|timestamp|stamp|seq|sequence|count|counter|id|ids|index|usec|nsec)(_|$)"
)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_accepts = keys_of(StreamSpec)["field"].metadata["type"].accepts


class NumericField(NamedTuple):
    """One or more fields that form one stream, and their observed values.

    values: (K, D) float64, for K messages. is_float: whether all values are floating-point numbers.
    """

    paths: tuple[str, ...]
    values: np.ndarray[Any, np.dtype[np.float64]]
    is_float: bool
    is_quaternion: bool = False

    @property
    def path(self) -> str | list[str]:
        """The value of `field` in a spec."""
        return self.paths[0] if len(self.paths) == 1 else list(self.paths)

    @property
    def name(self) -> str:
        """The common part of the paths, without element indexes."""
        parts = [re.sub(r"\[\d+\]", "", path).split(".") for path in self.paths]
        shared = [names[0] for names in zip(*parts, strict=False) if len(set(names)) == 1]
        return "_".join(shared)

    @property
    def dim(self) -> int:
        """Number of values per message."""
        return int(self.values.shape[1])


def numeric_fields(message: Struct, messages: Sequence[Any]) -> tuple[list[NumericField], list[str]]:
    """Return the fields of a type that streams can read, and the omitted fields, each with a reason.

    Single numbers with the same alignment form one stream, as do those at one path of a list of messages. Omitted are
    times and counters by their names, lists of variable length, and streams beyond MOST.

    Args:
        message: the type.
        messages: some messages of it, with the fields as attributes.
    """
    search = _Search(MEASURED_FIELDS.get(message.name, ("",)))
    search.fields(message, "", messages)
    found, left_out = search.found, search.left_out
    together: dict[tuple[Any, ...], list[NumericField]] = {}
    for field in found:
        together.setdefault(_kind(message, field), []).append(field)
    groups = [_joined(fields) for fields in together.values()]
    largest = sorted(groups, key=lambda group: -group.dim)[:MOST]
    left_out += [f"{', '.join(group.paths)} (of more than {MOST})" for group in groups if group not in largest]
    return [group for group in groups if group in largest], left_out


def _kind(message: Struct, field: NumericField) -> tuple[Any, ...]:
    """Return the key that groups fields: fields with the same key form one stream."""
    (path,) = field.paths
    header = nearest_header(message, parse_path(path))
    anywhere = re.sub(r"\[\d+\]", "[]", path)
    if field.is_quaternion or (field.dim > 1 and anywhere == path):
        return (path,)
    return ("" if field.dim == 1 and anywhere == path else anywhere, header, field.is_float)


def _joined(fields: Sequence[NumericField]) -> NumericField:
    if len(fields) == 1:
        return fields[0]
    values = np.concatenate([field.values for field in fields], axis=1)
    return NumericField(tuple(field.paths[0] for field in fields), values, all(field.is_float for field in fields))


class _Search:
    """Traverses the fields of a type.

    found: fields that a stream can read. left_out: paths, with reasons. measured: fields that are measurements; all
    fields begin with "".
    """

    def __init__(self, measured: tuple[str, ...]) -> None:
        self.measured = measured
        self.found: list[NumericField] = []
        self.left_out: list[str] = []

    def fields(self, struct: Struct, path: str, values: Sequence[Any]) -> None:
        """Add the fields of a message."""
        for name, t in struct.fields:
            inner = f"{path}.{name}".lstrip(".")
            if name == EMPTY_FIELD or (isinstance(t, Struct) and t.name in (*_TIMES, HEADER)):
                continue
            if _NO_MEASUREMENTS.search(name) or not inner.startswith(self.measured):
                if not isinstance(t, Text):
                    self.left_out.append(f"{inner} (not a measurement)")
            else:
                self.field(t, inner, [getattr(value, name) for value in values])

    def field(self, t: Type, path: str, values: Sequence[Any]) -> None:
        """Add a field, or its nested fields."""
        if isinstance(t, Primitive):
            self.add(path, [t], [[value] for value in values])
        elif isinstance(t, (Array, types.Sequence)):
            self.elements(t, path, values)
        elif isinstance(t, Struct):
            kinds = [field for _, field in t.fields]
            if all(isinstance(kind, Primitive) and kind.kind == "f" for kind in kinds):
                names = [name for name, _ in t.fields]
                rows = [[getattr(value, name) for name in names] for value in values]
                self.add(path, kinds, rows, is_quaternion=names == ["x", "y", "z", "w"])
            else:
                self.fields(t, path, values)

    def elements(self, t: Array | types.Sequence, path: str, values: Sequence[Any]) -> None:
        """Add a list of numbers, or the fields of the elements of a list of messages."""
        sizes = {len(value) for value in values}
        if len(sizes) != 1:
            if isinstance(t.element, (Primitive, Struct)):
                self.left_out.append(f"{path} ({min(sizes)} to {max(sizes)} elements)")
            return
        size = sizes.pop()
        if isinstance(t.element, Primitive):
            if 0 < size <= (BYTES if t.element.size == 1 and t.element.kind == "u" else LONGEST):
                self.add(path, [t.element], [list(value) for value in values])
            elif size:
                self.left_out.append(f"{path} ({size} elements)")
        elif isinstance(t.element, Struct):
            if size > ELEMENTS:
                self.left_out.append(f"{path} ({size} elements)")
                return
            for index in range(size):
                self.field(t.element, f"{path}[{index}]", [value[index] for value in values])

    def add(
        self, path: str, kinds: Iterable[Type], rows: Sequence[Sequence[Any]], *, is_quaternion: bool = False
    ) -> None:
        """Add a field if a spec can name it and float32 can represent at least one of its values."""
        is_float = all(isinstance(kind, Primitive) and kind.kind == "f" for kind in kinds)
        values = np.array(rows, np.float64)
        finite = np.abs(values[np.isfinite(values)])
        if not _accepts(path) or (len(finite) and finite.max() > _FLOAT32_MAX):
            self.left_out.append(f"{path} (beyond float32)")
        elif len(finite):
            self.found.append(NumericField((path,), values, is_float, is_quaternion))
        else:
            self.left_out.append(f"{path} (no finite value)")
