"""Declared keys: fields of a dataclass with type, limits, description and default, each declared once.

The fusion spec and the options of an export are such dataclasses. What reads them from YAML, from options of the
command line and from keywords, the JSON schema and the reference pages all use the same fields: they always agree.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from robocache_ros.errors import SeveralErrors, printable

KeyPath = tuple[object, ...]  # keys and indexes from the root of the spec: ("streams", "front", "image", "size", 0)

LINE_CHARACTERS = 199
MAX_PROBLEM_LINES = 20
_SUGGEST_FROM = 64  # maximum number of characters for the similarity search, which is quadratic


@dataclass(frozen=True)
class Problem:
    """One error: `text` has the form `<what is wrong>; <what to do>`."""

    path: KeyPath
    text: str

    def line(self, place: str = "") -> str:
        """`<place>: <path>: <text>` in at most LINE_CHARACTERS; the middle of long text is omitted."""
        return printable(": ".join(filter(None, (place, show_path(self.path), self.text))), LINE_CHARACTERS)


class SpecError(SeveralErrors):
    """The errors in a spec. The message has one line per error; `problems` is the list of errors."""

    def __init__(self, problems: Iterable[Problem], place: Callable[[KeyPath], str] = lambda _path: "") -> None:
        self.problems = tuple(problems)
        lines = [problem.line(place(problem.path)) for problem in self.problems[:MAX_PROBLEM_LINES]]
        if len(self.problems) > MAX_PROBLEM_LINES:
            more = Problem((), f"{len(self.problems) - MAX_PROBLEM_LINES} more errors; correct the ones above first")
            lines.append(more.line(place(()) or "spec"))
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,), {"args": self.args}  # without `place`, which the lines contain


def refusal(key: str, text: str) -> SpecError:
    """Return the error of a rule for several keys, reported at `key`. Paths such as `voxels.features` are split."""
    return SpecError([Problem(tuple(key.split(".")), text)])


class Problems(list[Problem]):
    """The errors of values that are read one after another, to be reported at once."""

    @contextmanager
    def below(self, *path: object) -> Iterator[None]:
        """Collect the errors of a block that reads a value, each prefixed with the path of that value."""
        try:
            yield
        except SpecError as error:
            self += [Problem((*path, *problem.path), problem.text) for problem in error.problems]

    def raise_any(self, place: Callable[[KeyPath], str] = lambda _path: "") -> None:
        """Raise a SpecError with all of them, if there are any."""
        if self:
            raise SpecError(self, place)


def show_path(path: KeyPath) -> str:
    """Format `("streams", "front", "size", 0)` as `streams.front.size[0]`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{printable(part, 40)}" for part in path]
    return printable("".join(parts).removeprefix("."), 80) if parts else ""


def show_value(raw: Any) -> str:
    """Format a refused value with bounded length."""
    if raw is None:
        return "nothing"
    if isinstance(raw, Mapping):
        return "a mapping"
    if isinstance(raw, (list, tuple, set)):
        return f"a list of {len(raw)}"
    if isinstance(raw, int) and raw.bit_length() > 64:
        return "an integer of more than 64 bits"
    if isinstance(raw, str) and len(raw) > 100:  # before repr, whose time grows with the length of the text
        raw = f"{raw[:50]}…{raw[-50:]}"
    return printable(repr(raw), 36)


def suggestion(given: object, known: Iterable[str]) -> str:
    """Return `did you mean 'align'?` for a word similar to a known one, else an empty string."""
    if not isinstance(given, str) or len(given) > _SUGGEST_FROM:
        return ""
    close = difflib.get_close_matches(given.lower(), list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


T = TypeVar("T")
Schema = dict[str, Any]
Hint = Callable[[str], str]

MAX_TEXT = 256  # characters of a topic, a name, a unit
_LISTED = 100  # maximum length of the list of all known keys
_YAML_11_BOOLEANS = ("yes", "no", "on", "off")


@dataclass(frozen=True)
class KeyType:
    """Type of a key: `read(raw)` checks and returns the value or raises SpecError; `schema` is the JSON schema.

    `from_text(given)` returns what `read` shall check, of the text (or list of texts) of a command line.
    """

    label: str
    read: Callable[[Any], Any]
    schema: Schema
    from_text: Callable[[Any], Any] = lambda given: given

    def accepts(self, raw: Any) -> bool:
        """Whether `read` accepts a value."""
        try:
            self.read(raw)
        except SpecError:
            return False
        return True


@dataclass(frozen=True)
class Flag:
    """The option of a command line for a key.

    Args:
        panel: heading under which --help lists it.
        help: line of --help; empty: the description of the key.
        names: such as `--jobs`, `-j`; empty: the name of the key with dashes.
        metavar: placeholder of its value; empty: the choices.
        shown: the default in words, where the declared one does not show it.
    """

    panel: str
    help: str = ""
    names: tuple[str, ...] = ()
    metavar: str = ""
    shown: str = ""


def key(
    type_: KeyType, doc: str, *, default: Any = MISSING, unit: str = "", flag: Flag | None = None, in_files: bool = True
) -> Any:
    """Declare a dataclass field that `read` fills from a mapping. A key without a default is required.

    Args:
        type_: what it accepts.
        doc: its description in the reference and the JSON schema.
        default: its value if it is not given.
        unit: of its value.
        flag: its option of a command line.
        in_files: whether files have it, or only the command line and Python.
    """
    metadata = {"type": type_, "doc": doc, "unit": unit, "flag": flag, "in_files": in_files}
    return dataclasses.field(default=default, metadata=metadata)


def keys_of(cls: type, *, in_files: bool = False) -> dict[str, Field[Any]]:
    """Return the declared keys of a dataclass by name, in order; with `in_files` those that files have."""
    declared = {f.name: f for f in dataclasses.fields(cls) if "doc" in f.metadata}
    return {name: f for name, f in declared.items() if f.metadata["in_files"]} if in_files else declared


def check(value: Any) -> None:
    """Check each key of a dataclass, and convert its value as `read` does, for `__post_init__`.

    A number stays as it was given, 2 or 2.0: the bytes of datasets depend on it.

    Raises:
        SpecError: lists all invalid values.
    """
    given = {name: getattr(value, name) for name in keys_of(type(value))}
    for name, found in read_values(type(value), given).items():
        if found != given[name]:
            object.__setattr__(value, name, found)


def read_values(cls: type, given: Mapping[str, Any], *, flags: bool = False) -> dict[str, Any]:
    """Read the values of some keys of a dataclass.

    A key may have its default, also where it is not a valid value ("", () or None, which mean: not set).

    Args:
        cls: the dataclass.
        given: values by the names of keys.
        flags: the values are those of a command line: the text, the list of texts or the boolean of each key; errors
            name its option.

    Raises:
        SpecError: lists all unknown keys and invalid values.
    """
    keys = keys_of(cls)
    problems = Problems(
        Problem((name,), f"no such option; {suggestion(name, keys) or 'docs/reference/commands.md lists them'}")
        for name in given
        if name not in keys
    )
    values = {}
    for name, raw in given.items():
        if name not in keys:
            continue
        field, type_ = keys[name], keys[name].metadata["type"]
        if not flags and type(raw) is type(field.default) and raw == field.default:
            values[name] = raw
            continue
        with problems.below(flags_of(field)[0] if flags else name):
            values[name] = type_.read(type_.from_text(raw) if flags else raw)
    problems.raise_any()
    return values


def flags_of(field: Field[Any]) -> tuple[str, ...]:
    """Return the names of the option of a key, the long one first."""
    flag = field.metadata["flag"]
    return (flag and flag.names) or ("--" + field.name.replace("_", "-"),)


def read(cls: type[T], raw: Any, **given: Any) -> T:
    """Read a mapping into the dataclass `cls`.

    Raises:
        SpecError: lists all unknown keys, missing keys and invalid values. Rules that involve several keys are checked
            only if each key is valid.
    """
    if not isinstance(raw, Mapping):
        raise refuse(f"expected keys and values, got {show_value(raw)}; write `key: value` lines")
    keys = keys_of(cls, in_files=True)
    problems = Problems(
        Problem((name,), f"no such key; {_known(name, list(keys))}") for name in raw if name not in keys
    )
    values = dict(given)
    for name, field in keys.items():
        if name in raw:
            with problems.below(name):
                values[name] = field.metadata["type"].read(raw[name])
        elif name not in given and field.default is MISSING:
            problems.append(Problem((name,), f"missing; give it ({field.metadata['doc']})"))
    problems.raise_any()
    return cls(**values)


def write(value: Any) -> Any:
    """Convert an object to plain values, from which `read` restores an equal object.

    A default that is not a valid value of its key ("", () or None, which mean: not set) is omitted.
    """
    if isinstance(value, tuple):
        return [write(item) for item in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    written = {}
    for name, field in keys_of(type(value)).items():
        mine = getattr(value, name)
        if mine == field.default and not field.metadata["type"].accepts(write(mine)):
            continue
        written[name] = write(mine)
    return written


def _known(name: object, keys: list[str]) -> str:
    listed = ", ".join(keys)
    choices = f"the keys here are {listed}" if len(listed) <= _LISTED else "docs/reference/spec.md lists the keys"
    return suggestion(name, keys) or choices


def refuse(text: str, path: KeyPath = ()) -> SpecError:
    """Return the error for one value."""
    return SpecError([Problem(path, text)])


def _wrong(raw: Any, wanted: str, hint: str) -> SpecError:
    if isinstance(raw, str) and raw.lower() in _YAML_11_BOOLEANS:
        hint = f"{hint} (YAML 1.2 reads {raw} as text)"
    return refuse(f"{show_value(raw)} is not {wanted}; {hint}")


def integer(low: int, high: int) -> KeyType:
    """An integer in [low, high]."""

    def parse(raw: Any) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or not low <= raw <= high:
            quoted = "write it without quotes" if isinstance(raw, str) and raw.isdecimal() else "change it"
            raise _wrong(raw, f"an integer from {low} to {high}", quoted)
        return raw

    def from_text(given: str) -> Any:
        return int(given) if re.fullmatch(r"-?[0-9]{1,18}", given) else given

    schema = {"type": "integer", "minimum": low, "maximum": high}
    return KeyType(f"integer {low} … {high}", parse, schema, from_text)


def number(low: float, high: float, *, above: bool = False) -> KeyType:
    """A finite number in [low, high], or in (low, high] with `above`."""
    words = f"{'above' if above else 'from'} {low:g} to {high:g}"

    def parse(raw: Any) -> float:
        fits = isinstance(raw, (int, float)) and not isinstance(raw, bool) and low <= raw <= high  # false for NaN
        if not fits or (above and raw == low):
            hint = "write a plain number such as 1.5" if isinstance(raw, str) else "change it"
            raise _wrong(raw, f"a number {words}", hint)
        return float(raw)

    def from_text(given: str) -> Any:
        try:
            return float(given)
        except ValueError:
            return given

    lower = "exclusiveMinimum" if above else "minimum"
    return KeyType(f"number {words}", parse, {"type": "number", lower: low, "maximum": high}, from_text)


def _boolean(raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise _wrong(raw, "true or false", "write one of them")
    return raw


boolean = KeyType("true | false", _boolean, {"type": "boolean"})


def choice(*choices: str) -> KeyType:
    """One of the given strings."""

    def parse(raw: Any) -> str:
        if not isinstance(raw, str) or raw not in choices:
            raise _wrong(raw, f"one of {', '.join(choices)}", suggestion(raw, choices) or "use one of them")
        return raw

    return KeyType(" | ".join(choices), parse, {"enum": list(choices)})


def text(
    wanted: str, accept: Callable[[str], bool] = bool, pattern: str | None = None, hint: Hint = lambda _raw: "change it"
) -> KeyType:
    """Printable text of 1 to MAX_TEXT characters for which `accept` returns true; `wanted` describes it.

    `hint(raw)` returns what to do if the text is not accepted.
    """

    def parse(raw: Any) -> str:
        if not isinstance(raw, str) or not raw:
            raise _wrong(raw, wanted, "put it in quotes" if isinstance(raw, (bool, int, float)) else "write text")
        if len(raw) > MAX_TEXT:
            raise refuse(f"{show_value(raw)} has {len(raw)} characters; use at most {MAX_TEXT}")
        if not raw.isprintable():
            raise refuse(f"{show_value(raw)} has control characters; remove them")
        if not accept(raw):
            raise _wrong(raw, wanted, hint(raw))
        return raw

    schema: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
    return KeyType(wanted, parse, {**schema, **({"pattern": pattern} if pattern else {})})


def pattern(wanted: str, expression: str, hint: Hint = lambda _raw: "change it") -> KeyType:
    """Text that matches a regular expression completely; `wanted` describes it."""
    return text(wanted, lambda raw: re.fullmatch(expression, raw) is not None, expression, hint)


TOPIC = r"^/[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*$"  # ROS 1 allows a part to start with a digit
topic_name = pattern("an absolute topic name such as /panda/joint_states", TOPIC)


def many(item: KeyType, *, length: int | None = None, unique: bool = False) -> KeyType:
    """A list of items: exactly `length` of them, or at least one."""
    count = f"{length} of" if length else "list of"

    def parse(raw: Any) -> tuple[Any, ...]:
        if isinstance(raw, (str, bytes, Mapping)) or not hasattr(raw, "__len__") or not hasattr(raw, "__iter__"):
            raise refuse(f"{show_value(raw)} is not a list; write [{count} {item.label}]")
        if len(raw) != length if length else not len(raw):
            raise refuse(f"expected {length or 'at least 1'} values, got {len(raw)}; give {count} {item.label}")
        values, problems = [], Problems()
        for index, value in enumerate(raw):
            with problems.below(index):
                values.append(item.read(value))
        if unique:
            twice = [value for value, times in Counter(values).items() if times > 1]
            problems += [Problem((), f"{show_value(value)} is in the list twice; name each once") for value in twice]
        problems.raise_any()
        return tuple(values)

    size = {"minItems": length, "maxItems": length} if length else {"minItems": 1}
    schema = {"type": "array", "items": item.schema, **size, "uniqueItems": unique}
    return KeyType(f"{count} {item.label}", parse, schema, lambda given: [item.from_text(each) for each in given])


def either(first: KeyType, second: KeyType) -> KeyType:
    """A list or a mapping is read as `second`, other values as `first`."""

    def parse(raw: Any) -> Any:
        return (second if isinstance(raw, (list, tuple, Mapping)) else first).read(raw)

    return KeyType(f"{first.label}, or {second.label}", parse, {"anyOf": [first.schema, second.schema]})


def converted(type_: KeyType, convert: Callable[[Any], Any]) -> KeyType:
    """The same key type; `convert` is applied to the checked value."""
    return KeyType(type_.label, lambda raw: convert(type_.read(raw)), type_.schema, type_.from_text)


def one_or_many(item: KeyType, *, unique: bool = False) -> KeyType:
    """One value, or a list of them; read as a tuple."""
    given = either(item, many(item, unique=unique))
    return converted(given, lambda value: value if isinstance(value, tuple) else (value,))


def by_name(
    label: str,
    example: str,
    read_one: Callable[[Any, Any], Any],
    schema: Schema,
    *,
    names: Schema | None = None,
    least: int = 1,
    most: int | None = None,
) -> KeyType:
    """A mapping of `least` to `most` names, read as a tuple of what `read_one` returns of each name and its value.

    `label` and `example` describe it in errors; `schema` is that of the values, `names` that of the names.
    """

    def parse(raw: Any) -> tuple[Any, ...]:
        if not isinstance(raw, Mapping) or not least <= len(raw) <= (len(raw) if most is None else most):
            up_to = f"up to {most:,} " if most else ""
            raise refuse(f"expected {up_to}{label}, got {show_value(raw)}; write `{example}`")
        found, problems = [], Problems()
        for name, given in raw.items():
            with problems.below(name):
                found.append(read_one(name, given))
        problems.raise_any()
        return tuple(found)

    sizes = {"minProperties": least, **({"maxProperties": most} if most else {})}
    of_names = {"propertyNames": names} if names else {}
    return KeyType(label, parse, {"type": "object", **sizes, **of_names, "additionalProperties": schema})


def _place(raw: Any) -> Any:
    if not isinstance(raw, (str, PathLike)) and not hasattr(raw, "url"):
        raise _wrong(raw, "a path or a URL", "write text")
    text = str(raw)
    if not text:
        raise refuse("is empty; write a path or a URL")
    if found := re.match(r"(s3a?|gs|gcs|az|abfss?|https?):/?(?!/)", text) if isinstance(raw, str) else None:
        raise refuse(f"{printable(text, 60)} is not a URL; write {found[1]}://{printable(text[found.end() :], 60)}")
    return raw


place = KeyType("path or URL", _place, {"type": "string", "minLength": 1})


def _folder(raw: Any) -> str:
    path = Path(_place(raw))
    if not path.is_dir():
        raise refuse(f"{printable(path)} is not a folder; give one with ROS packages, <package>/msg/<Type>.msg")
    return str(raw)


message_folder = KeyType("folder with ROS packages", _folder, {"type": "string", "minLength": 1})


def nested(cls: type) -> KeyType:
    """A mapping that is read into another dataclass of declared keys."""
    return KeyType(f"keys of {cls.__name__}", lambda raw: read(cls, raw), object_schema(cls))


def object_schema(cls: type) -> Schema:
    """Return the JSON schema of a dataclass of declared keys."""
    properties: Schema = {}
    required = []
    for name, field in keys_of(cls, in_files=True).items():
        unit = f" ({field.metadata['unit']})" if field.metadata["unit"] else ""
        properties[name] = {**field.metadata["type"].schema, "description": field.metadata["doc"] + unit}
        if field.default is MISSING:
            required.append(name)
        elif isinstance(field.default, (bool, int, float, str)):
            properties[name]["default"] = field.default
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
