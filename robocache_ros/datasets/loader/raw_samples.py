"""The streams of a sample as arrays for a block: what a worker sends if the batch is aligned on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.alignment import Unaligned, align_rows
from robocache_ros.datasets.loader.packing import ABSENT_STAMP_NS, Arrays, RawLayout, RawStream, key_of
from robocache_ros.datasets.undecoded_images import undecoded_images
from robocache_ros.decode.images import JPEG_MAGIC, jpeg_frame, jpeg_picture
from robocache_ros.decode.payloads import IMAGE_LIMITS
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.images import decode_image, images_at
from robocache_ros.formats.read import DatasetError, Stream, check_image_bytes

RGB = 3  # channels of the jpeg files that a GPU decodes


def raw_sample(
    sample: Unaligned, first: int, ticks: int, *, jpeg_files: bool
) -> tuple[RawLayout, Arrays, int, dict[str, str]]:
    """Return the layout of a sample whose streams are not aligned, its arrays, the number of its ticks, and its texts.

    Of vectors, these are the samples that its ticks may need. Of images, each one that a tick uses, once.

    Args:
        sample: as the dataset gives it.
        first: the first of its ticks to be used.
        ticks: how many of them; 0: all.
        jpeg_files: leave jpeg files encoded where a GPU can decode them.

    Errors:
        DatasetError: an image is damaged, or its alignment blends.
    """
    window, episode = slice(first, first + ticks) if ticks else slice(None), sample.episode
    ticks_ns, own = sample.ticks_ns[window], sample.action_ticks_ns
    arrays: Arrays = {"tick_ns": ticks_ns}
    if own is not None:
        arrays["action_tick_ns"] = own
    for key, flag in sample.flags.items():
        arrays[key] = flag[window] if key == "is_pad" else flag
    arrays["measured"] = np.array([stream.measured for stream in episode.streams.values()])
    arrays["success"] = np.array(-1 if episode.success is None else int(episode.success))
    span = _span(ticks_ns, own)
    streams = []
    for index, stream in enumerate(episode.streams.values()):
        method, size, image = sample.methods[stream.name], None, stream.is_image
        if image:
            size, parts = _images(stream, ticks_ns, sample.n_images, method, episode.source, jpeg_files)
        else:
            parts = _vectors(stream, span)
        arrays.update({key_of(index, part): array for part, array in parts.items()})
        width = 0 if image else stream.values.shape[1]  # type: ignore[union-attr]
        limits = stream.max_gap_ns, stream.max_age_ns
        marked = not image and stream.valid is not None and stream.age_ns is not None
        streams.append(RawStream(stream.name, stream.role, method, *limits, width, marked, size))
    return RawLayout(tuple(streams), own is not None), arrays, len(ticks_ns), dict(sample.texts)


def _span(ticks_ns: NDArray[np.int64], own: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """(2,) the first and the last of all ticks."""
    ends = [int(ticks[place]) for ticks in (ticks_ns, own) if ticks is not None and len(ticks) for place in (0, -1)]
    return np.array((min(ends, default=0), max(ends, default=0)))


def _vectors(stream: Stream, span: NDArray[np.int64]) -> Arrays:
    """The samples that are present, from the last one before the first tick to the first one after the last tick."""
    stamps, values = stream.stamps_ns, stream.values
    assert isinstance(values, np.ndarray)
    marks: list[NDArray[Any]] = []
    if stream.valid is not None and stream.age_ns is not None:
        marks = [stream.valid, stream.age_ns]
    if stream.valid is not None and not stream.valid.all():
        present = np.flatnonzero(stream.valid)
        stamps, values, marks = stamps[present], values[present], [mark[present] for mark in marks]
    first, last = stamps.searchsorted(span, "right").tolist()
    rows = slice(max(first - 1, 0), last + 1)
    stamps, values, marks = stamps[rows], values[rows], [mark[rows] for mark in marks]
    count = np.array(len(stamps))
    if not len(stamps):  # a row that does not count, so that no array is empty
        stamps, values = np.array([ABSENT_STAMP_NS]), np.zeros((1, *values.shape[1:]), np.float32)
        marks = [np.zeros(1, mark.dtype) for mark in marks]
    parts: Arrays = {"stamp_ns": stamps, "values": values, "count": count}
    return {**parts, **dict(zip(("valid", "age"), marks, strict=False))}


def _images(
    stream: Stream, ticks_ns: NDArray[np.int64], n_images: int | None, method: str, where: str, jpeg_files: bool
) -> tuple[tuple[int, int] | None, Arrays]:
    rows, valid, age = align_rows(stream, ticks_ns, method, where)
    if n_images is not None:
        rows = rows[-n_images:]
    distinct, place = np.unique(rows[rows >= 0], return_inverse=True)
    chosen = np.zeros(len(rows), np.int64)  # which of the images, from 1 on; 0: none
    chosen[rows >= 0] = place + 1
    parts: Arrays = {"chosen": chosen, "valid": valid, "age_ms": age}
    used = distinct if len(distinct) else np.zeros(1, np.int64)  # for the size
    if jpeg_files and (found := _jpeg_files(stream, used, where)) is not None:
        size, pictures = found
        check_image_bytes(len(used), (*size, RGB), where)
        ends = np.cumsum([len(picture) for picture in pictures])
        return size, {**parts, "files": np.frombuffer(b"".join(pictures), np.uint8), "ends": ends}
    undecoded = undecoded_images(stream, used, where)
    return None, {**parts, "images": images_at(stream, used, where) if undecoded is None else undecoded}


def _jpeg_files(stream: Stream, rows: NDArray[np.int64], where: str) -> tuple[tuple[int, int], Sequence[bytes]] | None:
    """The files at rows and their height and width; None if one of them is for the CPU: not a jpeg, or not of colour.

    Errors:
        DatasetError: a file is damaged, or has another size than the first.
    """
    files: Any = stream.values
    if isinstance(files, np.ndarray) or hasattr(files, "frames"):
        return None
    pictures, size = [], None
    for row in rows.tolist():
        data = bytes(files[row])
        if not data.startswith(JPEG_MAGIC):
            return None
        try:
            picture = jpeg_picture(data, IMAGE_LIMITS, IMAGE_LIMITS.pixels)
        except RoboCacheError:
            decode_image(data, f"{where}: {printable(stream.name, 40)}: image {row}")  # which raises its own error
            return None
        width, height, channels = jpeg_frame(picture)
        if channels != RGB:
            return None
        if (size := size or (height, width)) != (height, width):
            name = printable(stream.name, 40)
            raise DatasetError(f"{where}: {name}: image {row} is {(height, width)}, the first {size}; repair the file")
        pictures.append(picture)
    return None if size is None else (size, pictures)
