"""Converts message definitions (.msg texts from bags, and installed message classes) to types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module

from robocache_ros.decode.cdr.common_types import COMMON
from robocache_ros.decode.cdr.types import Array, Primitive, Sequence, Struct, Text, Type, Unsupported
from robocache_ros.decode.limits import MAX_DEFINITION_BYTES, MAX_DEPTH, MAX_FIXED_BYTES, MAX_LEAVES, MAX_TYPES
from robocache_ros.errors import RoboCacheError, printable

TIME = "builtin_interfaces/msg/Time"
HEADER = "std_msgs/msg/Header"
EMPTY_FIELD = "structure_needs_at_least_one_member"  # the field that ROS 2 adds to a message without fields

PRIMITIVES: dict[str, Type] = {
    **{f"int{8 * size}": Primitive(f"int{8 * size}", "i", size) for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": Primitive(f"uint{8 * size}", "u", size) for size in (1, 2, 4, 8)},
    "float32": Primitive("float32", "f", 4),
    "float64": Primitive("float64", "f", 8),
    "bool": Primitive("bool", "b", 1),
    "byte": Primitive("byte", "u", 1),
    "char": Primitive("char", "u", 1),
    "wstring": Unsupported("wstring"),
    "wchar": Unsupported("wchar"),
}
# The names that rosidl uses in get_fields_and_field_types().
_ROSIDL = {"double": "float64", "float": "float32", "boolean": "bool", "octet": "byte"}

_SEPARATOR = re.compile(r"^=+\s*$", re.MULTILINE)
_FIELD = re.compile(
    r"(?P<base>[A-Za-z][\w/]*)(?:<=(?P<bound>\d{1,10}))?(?P<array>\[(?P<upper><=)?(?P<count>\d{0,10})\])?\s+(?P<name>[A-Za-z]\w*)"
)
_CONSTANT = re.compile(r"[A-Za-z][\w/]*(?:<=\d+)?\s+[A-Za-z]\w*\s*=")


def full_name(name: str, package: str = "") -> str:
    """`sensor_msgs/Imu` -> `sensor_msgs/msg/Imu`; a bare name belongs to `package`, Header to std_msgs."""
    parts = name.split("/")
    if len(parts) == 1:
        return HEADER if name == "Header" else f"{package}/msg/{name}"
    return f"{parts[0]}/msg/{parts[-1]}"


def split_definitions(name: str, text: str) -> dict[str, str]:
    """Split a concatenated definition into one text per type; the first part is the text of `name`."""
    if len(text) > MAX_DEFINITION_BYTES:
        raise RoboCacheError(
            f"definition of {printable(name)}: {len(text)} characters; at most {MAX_DEFINITION_BYTES} are allowed"
        )
    first, *others = _SEPARATOR.split(text)
    if len(others) >= MAX_TYPES:
        raise RoboCacheError(f"definition of {printable(name)}: more than {MAX_TYPES} types; use fewer")
    parts = {full_name(name): first}
    for other in others:
        head, _, body = other.strip().partition("\n")
        if not head.startswith("MSG:"):
            raise RoboCacheError(
                f"definition of {printable(name, 60)}: expected 'MSG: package/Type' after '=====', "
                f"got '{printable(head, 30)}'"
            )
        parts[full_name(head[4:].strip())] = body
    return parts


def needed_types(name: str, text: str) -> list[str]:
    """Return the types of the fields of a definition that are not primitive."""
    package = name.partition("/")[0]
    fields = (line.partition("#")[0].strip() for line in text.splitlines())
    bases = (match["base"] for field in fields if not _CONSTANT.match(field) and (match := _FIELD.match(field)))
    return [full_name(base, package) for base in bases if base not in PRIMITIVES and base != "string"]


def message_type(name: str, definitions: Mapping[str, str] | None = None) -> Struct:
    """The layout of a message type.

    definitions: type -> .msg text with the types it needs after '=====' lines, as in MCAP schemas. Other types come
    from the common types. `RoboCacheError` if a type is unknown or a text cannot be read.
    """
    name = full_name(name)
    texts = dict(COMMON)
    own = {full_name(key): text for key, text in (definitions or {}).items()}
    for key in sorted(own, key=name.__eq__):  # the type's own text comes last and takes precedence
        texts.update(split_definitions(key, own[key]))
    return _Builder(texts).struct(name)


class _Builder:
    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.built: dict[str, tuple[Struct, int, int]] = {}  # with the number of leaves and bytes of each
        self.open: list[str] = []

    def struct(self, name: str) -> Struct:
        if name in self.built:
            return self.built[name][0]
        shown = printable(name, 60)
        if name not in self.texts:
            wanted = f" (needed by {printable(self.open[-1], 60)})" if self.open else ""
            raise RoboCacheError(f"type: no definition of {shown}{wanted}; give its .msg file with --msg-path DIR")
        if name in self.open:
            raise RoboCacheError(f"definition of {shown}: contains itself; remove the cycle")
        if len(self.open) == MAX_DEPTH:
            raise RoboCacheError(f"definition of {shown}: more than {MAX_DEPTH} nested messages; nest fewer")
        self.open.append(name)
        package = name.partition("/")[0]
        fields = tuple(field for line in self.texts[name].splitlines() for field in self._field(name, package, line))
        if len({field for field, _ in fields}) != len(fields):
            raise RoboCacheError(f"definition of {shown}: two fields have the same name; rename one")
        self.open.pop()
        # In ROS 2, a message without fields takes one byte on the wire.
        empty = ((EMPTY_FIELD, PRIMITIVES["uint8"]),)
        struct = Struct(name, fields or empty)
        sizes = [self._size(t) for _, t in struct.fields]
        leaves, nbytes = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
        if leaves > MAX_LEAVES or nbytes > MAX_FIXED_BYTES:
            raise RoboCacheError(
                f"definition of {shown}: {leaves} fields and {nbytes:.3g} bytes, with nested ones; at most "
                f"{MAX_LEAVES} and {MAX_FIXED_BYTES:.3g} are allowed"
            )
        self.built[name] = struct, leaves, nbytes
        return struct

    def _size(self, t: Type) -> tuple[int, int]:
        """The number of leaves of a type, and the minimum number of bytes that it takes."""
        if isinstance(t, Struct):
            return self.built[t.name][1:]
        if isinstance(t, Array):
            leaves, nbytes = self._size(t.element)
            return leaves, nbytes * t.length
        if isinstance(t, Sequence):
            return self._size(t.element)[0], 4
        return 1, t.size if isinstance(t, Primitive) else 4

    def _field(self, name: str, package: str, line: str) -> list[tuple[str, Type]]:
        text = line.partition("#")[0].strip()
        if not text or _CONSTANT.match(text):
            return []
        match = _FIELD.match(text)
        shown = f"definition of {printable(name, 60)}"
        if match is None or match["base"] == "module":
            raise RoboCacheError(f"{shown}: cannot read '{printable(line.strip(), 40)}'; expected .msg text, not IDL")
        base, bound = match["base"], match["bound"]
        if base == "string":
            element: Type = Text(int(bound) if bound else None)
        else:
            element = PRIMITIVES.get(base) or self.struct(full_name(base, package))
        if not match["array"]:
            return [(match["name"], element)]
        count = int(match["count"]) if match["count"] else None
        if count is None or match["upper"]:
            return [(match["name"], Sequence(element, count))]
        if count == 0:
            raise RoboCacheError(f"{shown}: '{printable(line.strip(), 40)}' has no elements; give it one or more")
        return [(match["name"], Array(element, count))]


def definitions_of(message_class: type) -> dict[str, str]:
    """The definitions of an installed message class (its `get_fields_and_field_types`), for `make_decoder`.

    The classes of its fields are found by name in the installed packages.
    """
    texts: dict[str, str] = {}
    _describe_class(message_class, texts)
    return texts


def _describe_class(message_class: type, texts: dict[str, str]) -> None:
    package = message_class.__module__.partition(".")[0]
    name = f"{package}/msg/{message_class.__name__}"
    if name in texts:
        return
    if not hasattr(message_class, "get_fields_and_field_types"):
        raise RoboCacheError(
            f"{printable(repr(message_class))}: is not a ROS 2 message class; pass one such as sensor_msgs.msg.Imu"
        )
    fields: dict[str, str] = message_class.get_fields_and_field_types()
    lines = {field: _as_msg(kind) for field, kind in fields.items()}
    texts[name] = "\n".join(f"{kind} {field}" for field, kind in lines.items())
    for kind in lines.values():
        base = kind.partition("[")[0]
        if "/" in base:
            other, _, inner = base.partition("/")
            _describe_class(getattr(import_module(f"{other}.msg"), inner), texts)


def _as_msg(kind: str) -> str:
    """`sequence<double, 3>` -> `float64[<=3]`, `string<8>[2]` -> `string<=8[2]`."""
    sequence = re.fullmatch(r"sequence<(.+?)(?:, *(\d+))?>", kind)
    if sequence:
        return f"{_as_msg(sequence[1])}[{f'<={sequence[2]}' if sequence[2] else ''}]"
    base, bracket, rest = kind.partition("[")
    base = re.sub(r"<(\d+)>$", r"<=\1", base)
    return _ROSIDL.get(base, base) + bracket + rest
