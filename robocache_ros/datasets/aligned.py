"""The streams of an episode at ticks: the operations that align recordings, applied to the samples of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.datasets.episode_source import DatasetError, Stream
from robocache_ros.engine.frames import age_ms
from robocache_ros.errors import printable
from robocache_ros.ops.resample.cpu import blend_rows
from robocache_ros.ops.resample.selection import HELD, Rule, Selection, select
from robocache_ros.ops.tensor_checks import check_source

NO_LIMIT = np.iinfo(np.int64).max


class Aligned(NamedTuple):
    """A stream at T ticks."""

    values: Tensor  # (T, D) float32, or images (T, H, W, 3) uint8; zeros where there is none
    valid: Tensor  # (T,) uint8: 0 none, 1 aligned, 2 held
    age_ms: Tensor  # (T,) float32


KINDS = ("vision", "proprio", "actions", "rewards")


def method_of(stream: Stream, chosen: Mapping[str, str]) -> str:
    """Return the alignment of a stream: chosen by its name or kind, else the dataset's own, else that of its kind."""
    kind = "vision" if stream.is_image else {"observation": "proprio", "action": "actions"}.get(stream.role, "rewards")
    default = stream.align or ("linear" if kind == "proprio" else "hold")
    return chosen.get(stream.name) or chosen.get(kind) or default


def align_vectors(
    streams: Sequence[Stream], ticks_ns: NDArray[np.int64], methods: Mapping[str, str]
) -> dict[str, Aligned]:
    """Align streams of (K, D) float32 values to ticks, with the bits of `ops.fuse`.

    Args:
        streams: any number.
        ticks_ns: (T,) int64, in any order.
        methods: the alignment of each stream, by its name.

    Returns:
        The aligned streams by name.
    """
    if not streams:
        return {}
    found = {}
    for group in _groups(streams, methods):
        stream, method = group[0], methods[group[0].name]
        values = torch.from_numpy(
            np.concatenate([_vectors(each) for each in group], axis=1) if len(group) > 1 else _vectors(stream)
        )
        check_source(stream.name, values, method, dims=2)
        selected = _select(stream, ticks_ns, method)
        blended = blend_rows(values, selected.lower, selected.upper, selected.weight, method, torch.float32)
        column = 0
        for each in group:
            width = _vectors(each).shape[1]
            valid, age_ns = _of_export(each, ticks_ns, selected.valid, selected.age_ns)
            found[each.name] = _aligned(blended[:, column : column + width], valid, age_ns)
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
    selected = _select(stream, ticks_ns, method)
    valid, age_ns = _of_export(stream, ticks_ns, selected.valid, selected.age_ns)
    return selected.lower, valid.copy(), age_ms(age_ns)


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


def _select(stream: Stream, ticks_ns: NDArray[np.int64], method: str) -> Selection:
    """Select the samples of each tick, of those that are present."""
    max_gap, max_age = (NO_LIMIT if limit is None else limit for limit in (stream.max_gap_ns, stream.max_age_ns))
    rule = Rule(method, max_gap, max_age)
    if stream.valid is None or stream.valid.all():
        return select(stream.stamps_ns, ticks_ns, rule)
    present = np.flatnonzero(stream.valid)
    selected = select(stream.stamps_ns[present], ticks_ns, rule)
    if not len(present):
        return selected
    lower, upper = (np.where(rows >= 0, present[rows], -1) for rows in (selected.lower, selected.upper))
    return replace(selected, lower=lower, upper=upper)


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
