"""The streams of an episode at ticks: the operations that align recordings, applied to the samples of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros import ops
from robocache_ros.datasets.episode_source import DatasetError, Stream
from robocache_ros.engine.frames import age_ms
from robocache_ros.errors import printable
from robocache_ros.ops.resample.selection import HELD, Rule, select
from robocache_ros.ops.resample.times import NEVER

NO_LIMIT = np.iinfo(np.int64).max


class Aligned(NamedTuple):
    """A stream at T ticks."""

    values: Tensor  # (T, D) float32, or images (T, H, W, 3) uint8; zeros where there is none
    valid: Tensor  # (T,) uint8: 0 none, 1 aligned, 2 held
    age_ms: Tensor  # (T,) float32


def method_of(stream: Stream, chosen: Mapping[str, str]) -> str:
    """Return the alignment of a stream: chosen by its name or kind, else the dataset's own, else that of its kind."""
    kind = "vision" if stream.is_image else {"observation": "proprio", "action": "actions"}.get(stream.role, "rewards")
    default = stream.align or ("linear" if kind == "proprio" else "hold")
    return chosen.get(stream.name) or chosen.get(kind) or default


def align_vectors(
    streams: Sequence[Stream], ticks_ns: NDArray[np.int64], methods: Mapping[str, str]
) -> dict[str, Aligned]:
    """Align streams of (K, D) float32 values to ticks, with `ops.fuse`.

    Args:
        streams: any number.
        ticks_ns: (T,) int64, in any order.
        methods: the alignment of each stream, by its name.

    Returns:
        The aligned streams by name.
    """
    if not streams:
        return {}
    groups = _groups(streams, methods)
    fused = ops.fuse([_fuse_input(group, methods[group[0].name]) for group in groups], torch.from_numpy(ticks_ns))
    found, column = {}, 0
    for index, group in enumerate(groups):
        selected = fused.valid[0, :, index].numpy(), fused.age[0, :, index].numpy()
        for stream in group:
            width = _vectors(stream).shape[1]
            valid, age_ns = _of_export(stream, ticks_ns, *selected)
            found[stream.name] = _aligned(fused.values[0, :, column : column + width], valid, age_ns)
            column += width
    return found


def align_rows(
    stream: Stream, ticks_ns: NDArray[np.int64], method: str, where: str
) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.float32]]:
    """Return the image of each tick, (T,) int64 and -1 where there is none, and `valid` and `age_ms` of `Aligned`.

    Errors:
        DatasetError: the method blends.
    """
    if method not in ("hold", "nearest", "next"):
        raise DatasetError(f"{where}: {printable(stream.name, 40)}: images are not {method}; use hold, nearest or next")
    present = np.arange(len(stream.stamps_ns)) if stream.valid is None else np.flatnonzero(stream.valid)
    max_age = NO_LIMIT if stream.max_age_ns is None else stream.max_age_ns
    selected = select(stream.stamps_ns[present], ticks_ns, Rule(method, NO_LIMIT, max_age))
    rows = np.where(selected.lower >= 0, present[selected.lower], -1) if len(present) else selected.lower
    valid, age_ns = _of_export(stream, ticks_ns, selected.valid, selected.age_ns)
    return rows, valid.copy(), age_ms(age_ns)


def _vectors(stream: Stream) -> NDArray[np.float32]:
    assert isinstance(stream.values, np.ndarray)
    return stream.values


def _groups(streams: Sequence[Stream], methods: Mapping[str, str]) -> list[list[Stream]]:
    """Group the streams whose columns are selected alike: they are fused as one, which takes less time."""
    groups: list[list[Stream]] = []
    for stream in streams:
        alike = (group for group in groups if _alike(group[0], stream, methods))
        group = next(alike, None)
        if group is None:
            groups.append([stream])
        else:
            group.append(stream)
    return groups


def _alike(first: Stream, second: Stream, methods: Mapping[str, str]) -> bool:
    if methods[first.name] != methods[second.name] or methods[first.name] == "slerp":  # which blends four columns
        return False
    limits = [(stream.max_gap_ns, stream.max_age_ns) for stream in (first, second)]
    plain = first.valid is None and second.valid is None
    return plain and limits[0] == limits[1] and np.array_equal(first.stamps_ns, second.stamps_ns)


def _fuse_input(group: Sequence[Stream], method: str) -> ops.Stream:
    stream = group[0]
    times = stream.stamps_ns if stream.valid is None else np.where(stream.valid > 0, stream.stamps_ns, NEVER)
    values = np.concatenate([_vectors(each) for each in group], axis=1) if len(group) > 1 else _vectors(stream)
    return ops.Stream(
        torch.from_numpy(values)[None], torch.from_numpy(times), method, None, stream.max_gap_ns, stream.max_age_ns
    )


def _of_export(
    stream: Stream, ticks_ns: NDArray[np.int64], valid: NDArray[np.uint8], age_ns: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the state and the age of the measurement, where the samples were themselves aligned by an export."""
    if stream.valid is None or stream.age_ns is None:
        return valid, age_ns
    found = valid > 0
    rows = np.searchsorted(stream.stamps_ns, ticks_ns - age_ns)[found]
    valid, age_ns = valid.copy(), age_ns.copy()
    valid[found] = np.where(stream.valid[rows] == HELD, HELD, valid[found])
    age_ns[found] += stream.age_ns[rows]
    return valid, age_ns


def _aligned(values: Tensor, valid: NDArray[np.uint8], age_ns: NDArray[np.int64]) -> Aligned:
    return Aligned(values, torch.from_numpy(valid.copy()), torch.from_numpy(age_ms(age_ns)))
