"""Gives the cameras of a suggested spec one size, which some policies need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from robocache_ros.bags.describe import BagInfo, image_size
from robocache_ros.bags.suggest.spec_text import SuggestedStream

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
