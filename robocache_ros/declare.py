"""Declared keys: a dataclass field with its meaning, type and limits, written once.

Reading a mapping, the JSON schema and the reference page are all made from the same fields, so they cannot disagree.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass
from typing import Any, TypeVar

from robocache_ros.errors import RoboCacheError

T = TypeVar("T")
Schema = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """What a key accepts: `read(path, raw)` checks and gives the value, `schema` says it as JSON schema."""

    label: str
    read: Callable[[str, Any], Any]
    schema: Schema


def key(kind: Kind, doc: str, *, default: Any = MISSING, unit: str = "") -> Any:
    """A dataclass field that `read` fills from a mapping; without a default the key is required."""
    metadata = {"kind": kind, "doc": doc, "unit": unit}
    return dataclasses.field(metadata=metadata) if default is MISSING else _with_default(default, metadata)


def _with_default(default: Any, metadata: Mapping[str, Any]) -> Any:
    if type(default).__hash__ is None:
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def keys_of(cls: type) -> dict[str, Field[Any]]:
    """The declared keys of a dataclass, by name, in order."""
    return {f.name: f for f in dataclasses.fields(cls) if "kind" in f.metadata}


def default_of(field: Field[Any]) -> Any:
    """The default of a declared key, MISSING where it is required."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def read(cls: type[T], path: str, raw: Any, **given: Any) -> T:
    """Read a mapping into the dataclass `cls`: every key checked, unknown and missing ones refused by name."""
    if not isinstance(raw, Mapping):
        raise RoboCacheError(f"{path or 'spec'}: expected keys and values, got {_show(raw)}")
    keys = keys_of(cls)
    for name in raw:
        if name not in keys:
            raise RoboCacheError(f"{join(path, name)}: no such key; the keys here are {', '.join(keys)}")
    values = dict(given)
    for name, field in keys.items():
        if name in raw:
            values[name] = field.metadata["kind"].read(join(path, name), raw[name])
        elif name not in given and default_of(field) is MISSING:
            raise RoboCacheError(f"{join(path, name)}: missing; it must be given ({field.metadata['doc']})")
    try:
        return cls(**values)
    except RoboCacheError as error:  # a rule between several keys speaks of `key: ...`; put the path before it
        raise RoboCacheError(join(path, str(error))) from None


def join(path: str, name: object) -> str:
    """`streams.front` and `align` -> `streams.front.align`."""
    return f"{path}.{name}" if path else str(name)


def _show(raw: Any) -> str:
    return "nothing" if raw is None else repr(raw)


def _refuse(path: str, raw: Any, wanted: str) -> RoboCacheError:
    return RoboCacheError(f"{path}: {_show(raw)} is not {wanted}")


def integer(low: int, high: int) -> Kind:
    """A whole number in [low, high]."""

    def parse(path: str, raw: Any) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or not low <= raw <= high:
            raise _refuse(path, raw, f"a whole number from {low} to {high}")
        return raw

    return Kind(f"whole number {low} … {high}", parse, {"type": "integer", "minimum": low, "maximum": high})


def number(low: float, high: float, *, above: bool = False) -> Kind:
    """A finite number in [low, high], or in (low, high] with `above`."""
    words = f"{'above' if above else 'from'} {low:g} to {high:g}"

    def parse(path: str, raw: Any) -> float:
        fits = isinstance(raw, (int, float)) and not isinstance(raw, bool) and math.isfinite(raw)
        if not fits or not low <= raw <= high or (above and raw == low):
            raise _refuse(path, raw, f"a number {words}")
        return float(raw)

    lower = "exclusiveMinimum" if above else "minimum"
    return Kind(f"number {words}", parse, {"type": "number", lower: low, "maximum": high})


def choice(*choices: str) -> Kind:
    """One of a few words."""

    def parse(path: str, raw: Any) -> str:
        if raw not in choices:
            raise RoboCacheError(f"{path}: {_show(raw)} is not one of {', '.join(choices)}")
        return str(raw)

    return Kind(" | ".join(choices), parse, {"enum": list(choices)})


def text(wanted: str, accept: Callable[[str], bool] = bool, pattern: str | None = None) -> Kind:
    """A non-empty string that `accept` takes; `wanted` says which, in words."""

    def parse(path: str, raw: Any) -> str:
        if not isinstance(raw, str) or not raw or not accept(raw):
            raise _refuse(path, raw, wanted)
        return raw

    return Kind(wanted, parse, {"type": "string", "minLength": 1, **({"pattern": pattern} if pattern else {})})


def many(item: Kind, *, length: int | None = None, unique: bool = False) -> Kind:
    """A list of items: exactly `length` of them, or one and more."""
    count = f"{length} of" if length else "list of"

    def parse(path: str, raw: Any) -> tuple[Any, ...]:
        if isinstance(raw, (str, Mapping)) or not hasattr(raw, "__len__") or not hasattr(raw, "__iter__"):
            raise _refuse(path, raw, f"a list ({count} {item.label})")
        if len(raw) != length if length else not raw:
            raise RoboCacheError(f"{path}: expected {length or 'at least 1'} values, got {len(raw)}: {raw!r}")
        values = tuple(item.read(f"{path}[{i}]", value) for i, value in enumerate(raw))
        if unique and len(set(values)) != len(values):
            twice = next(v for i, v in enumerate(values) if v in values[:i])
            raise RoboCacheError(f"{path}: {twice!r} stands in it twice; name each once")
        return values

    size = {"minItems": length, "maxItems": length} if length else {"minItems": 1}
    return Kind(f"{count} {item.label}", parse, {"type": "array", "items": item.schema, **size, "uniqueItems": unique})


def either(first: Kind, second: Kind) -> Kind:
    """A list goes to `second`, anything else to `first`."""

    def parse(path: str, raw: Any) -> Any:
        return (second if isinstance(raw, (list, tuple, Mapping)) else first).read(path, raw)

    return Kind(f"{first.label}, or {second.label}", parse, {"anyOf": [first.schema, second.schema]})


def converted(kind: Kind, convert: Callable[[str, Any], Any]) -> Kind:
    """The same key, its checked value passed through `convert(path, value)`."""
    return Kind(kind.label, lambda path, raw: convert(path, kind.read(path, raw)), kind.schema)


def nested(cls: type) -> Kind:
    """A mapping read into another dataclass of declared keys."""
    return Kind(f"keys of {cls.__name__}", lambda path, raw: read(cls, path, raw), object_schema(cls))


def object_schema(cls: type) -> Schema:
    """The JSON schema of a dataclass of declared keys."""
    properties: Schema = {}
    required = []
    for name, field in keys_of(cls).items():
        unit = f" ({field.metadata['unit']})" if field.metadata["unit"] else ""
        properties[name] = {**field.metadata["kind"].schema, "description": field.metadata["doc"] + unit}
        default = default_of(field)
        if default is MISSING:
            required.append(name)
        elif isinstance(default, (bool, int, float, str)):
            properties[name]["default"] = default
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
