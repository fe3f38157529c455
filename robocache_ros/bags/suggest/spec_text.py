"""The text of a suggested spec, and one size for all of its cameras."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from robocache_ros.bags.describe import BagInfo, image_size
from robocache_ros.errors import printable

_CLOCKS = {
    "device": "# `stamp: device` translates stamps of another clock, by comparing stamps and arrivals.",
    "receive": "# Where stamps are not usable, `stamp: receive` uses the arrival, which is late by the delay.",
    "header_or_receive": "# `stamp: header_or_receive` uses the arrival of a sample if its stamp is not set.",
}
LINE_CHARACTERS = 118  # characters of a comment


@dataclass(frozen=True)
class SuggestedStream:
    """A stream of the suggested spec."""

    name: str  # preferred name; made unique later
    keys: dict[str, Any]
    remarks: tuple[str, ...] = ()
    period_ms: float = 0.0  # period of the source data; 0: the period of the topic
    delays_ms: NDArray[np.float64] | None = field(default=None, compare=False)  # None: those of the topic
    left_out: str = ""  # why the stream is commented out; empty: it is in the spec
    is_quaternion: bool = False
    is_held: bool = False  # `delay_ms` does not wait for it

    def held(self, limits: dict[str, Any], why: str) -> SuggestedStream:
        """Return the stream with its newest value held."""
        keys = {name: value for name, value in self.keys.items() if name != "max_gap_ms"}
        return replace(self, keys={**keys, **limits}, remarks=(*self.remarks, why))


def unique_names(streams: Sequence[SuggestedStream]) -> list[SuggestedStream]:
    """Return the streams with names that differ: equal names get more parts of their topics, else a number."""
    topics: dict[str, set[str]] = {}  # the topics of each name
    for stream in streams:
        topics.setdefault(stream.name, set()).add(stream.keys["topic"])
    used: set[str] = set()
    found = []
    for stream in streams:
        parts = [as_name(part) for part in stream.keys["topic"].strip("/").split("/")[:-1]]
        if parts and stream.name.startswith(parts[-1]):
            del parts[-1]
        longer = ["_".join([*parts[-n:], stream.name]) for n in range(1, len(parts) + 1)]
        names = [*longer, stream.name] if len(topics[stream.name]) > 1 else [stream.name, *longer]
        names = [name.lstrip("_0123456789")[:MAX_NAME] or "stream" for name in names]
        number = 2
        while all(name in used for name in names):
            names, number = [f"{stream.name[:MAX_NAME]}_{number}"], number + 1
        name = next(name for name in names if name not in used)
        used.add(name)
        found.append(replace(stream, name=name))
    return found


MAX_NAME = 60


def as_name(text: str) -> str:
    """Return text in the characters of a stream's name."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def lines_of(
    info: BagInfo,
    streams: Sequence[SuggestedStream],
    left_out: Sequence[str],
    warnings: Sequence[str],
    delay: tuple[int, str],
) -> Iterator[str]:
    """Yield the lines of the spec.

    Args:
        info: the recording.
        streams: the streams, with names that differ.
        left_out: what has no stream, each with its reason.
        warnings: what the user should know before an export.
        delay: `delay_ms`, and what it was derived from.
    """
    clocks = {s.keys.get("stamp") for s in streams if info.topics[s.keys["topic"]].stats.clock.text}
    yield f"# A first spec for {printable(info.path.name, 80)}, measured from its {info.duration_s:.1f} s."
    yield "# `robocache check` shows it with all defaults; with `robocache schema` an editor can complete it."
    for warning in warnings:
        yield from _comment(f"Warning: {warning}.", "# ")
    yield "robocache: 1"
    yield "rate_hz: 50"
    yield f"# {delay[1]}"
    yield "# With a smaller delay_ms a robot reacts faster; values that arrive later are marked as missing."
    yield f"delay_ms: {delay[0]}"
    yield from (line for stamp, line in _CLOCKS.items() if stamp in clocks)
    yield "streams:"
    for stream in streams:
        clock = info.topics[stream.keys["topic"]].stats.clock.text if stream.keys.get("stamp") else ""
        for remark in filter(None, (stream.left_out, *stream.remarks, clock)):
            yield from _comment(remark, "  # ")
        indent = "  # " if stream.left_out else "  "
        yield f"{indent}{stream.name}:"
        for key, value in stream.keys.items():
            yield f"{indent}  {key}: {_flow(value)}"
    if not any(stream.keys.get("role") == "action" and not stream.left_out for stream in streams):
        yield "# No topic looks like a command: give `role: action` to the stream that the policy predicts, and remove"
        yield "# the next line; or export with --action next-observation."
        yield "actions: none"
    if left_out:
        yield "# Left out:"
        for line in left_out:
            yield from _comment(line, "#   ")


def _comment(text: str, indent: str) -> Iterator[str]:
    lines = textwrap.wrap(printable(text, 8000), LINE_CHARACTERS, break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(lines):
        yield f"{indent}{'  ' if number else ''}{line}"


def _flow(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).strip()
    return f"{value:g}" if isinstance(value, float) else str(value)


_DEPTH_ENCODINGS = ("16UC1", "32FC1", "64FC1", "mono16")
_WHY = "one size for all cameras, which Diffusion Policy needs"


def with_common_size(info: BagInfo, streams: Iterable[SuggestedStream]) -> list[SuggestedStream]:
    """Return the streams with colour cameras of one size: the smallest one, so that no image is enlarged.

    Images of another aspect ratio are cropped around their centre, and not distorted.
    """
    given = list(streams)
    cameras = {index: size for index, stream in enumerate(given) if (size := _recorded_size(info, stream))}
    sizes = {index: tuple(given[index].keys["image"]["size"]) for index in cameras}
    if len(set(sizes.values())) < 2:
        return given
    height, width = min(sizes.values(), key=lambda size: size[0] * size[1])
    for index, recorded in cameras.items():
        if sizes[index] != (height, width):
            given[index] = _resized(given[index], recorded, height, width)
    return given


def _recorded_size(info: BagInfo, stream: SuggestedStream) -> tuple[int, int] | None:
    """Return the height and width of the images of a colour camera; None for other streams, and if unknown."""
    if "image" not in stream.keys:
        return None
    message = info.topics[stream.keys["topic"]].messages[0]
    return None if is_depth(message) else image_size(message)


def is_depth(message: Any) -> bool:
    """Whether an image has distances rather than colours."""
    return getattr(message, "encoding", "") in _DEPTH_ENCODINGS or "compressedDepth" in getattr(message, "format", "")


def _resized(stream: SuggestedStream, recorded: tuple[int, int], height: int, width: int) -> SuggestedStream:
    rows = min(recorded[0], max(1, round(recorded[1] * height / width)))
    columns = min(recorded[1], max(1, round(recorded[0] * width / height)))
    image: dict[str, Any] = {"size": [height, width]}
    remark = f"{stream.remarks[0]}; {_WHY}"
    if (rows, columns) != recorded:
        image["crop"] = [(recorded[0] - rows) // 2, (recorded[1] - columns) // 2, rows, columns]
        remark += "; cropped to its aspect ratio"
    return replace(stream, keys={**stream.keys, "image": image}, remarks=(remark,))
