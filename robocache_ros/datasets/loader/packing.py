"""The arrays of a batch side by side in one block of memory, so that one copy moves all of them to the device."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.undecoded_images import UndecodedImages
from robocache_ros.errors import RoboCacheError, printable

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class RawStream(NamedTuple):
    """What a stream is in all samples of a batch."""

    name: str
    role: str
    method: str
    max_gap_ns: int | None
    max_age_ns: int | None
    width: int  # columns; 0: images
    marked: bool  # its samples were aligned by an export, and have `valid` and `age`
    size: tuple[int, int] | None  # height and width of its jpeg files, if the device decodes them


class RawLayout(NamedTuple):
    """What the samples of a batch have in common."""

    streams: tuple[RawStream, ...]
    own_ticks: bool  # actions and rewards have ticks of their own


def key_of(index: int, part: str) -> str:
    """The key of a part of a stream in the block."""
    return f"{index}/{part}"


ALIGNMENT = 256  # bytes, of each array in the block: what CUDA kernels read best
MIN_JOIN_SAVING_BYTES = 2**20  # bytes that joined arrays save: less is not worth the time in which the device pads them
_ROW = np.dtype(np.int32)
ABSENT_STAMP_NS = np.iinfo(np.int64).min  # a stamp that marks an absent sample or tick
ROWS = "/rows"
Arrays = dict[str, "NDArray[Any] | UndecodedImages"]


@dataclass(frozen=True)
class Entry:
    """Where an array is in the block."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes


@dataclass(frozen=True)
class Description:
    """What a block contains; a worker sends it through a pipe, and the arrays stay in shared memory."""

    entries: tuple[Entry, ...]
    nbytes: int
    samples: tuple[int, ...]  # their numbers, in the order of the batch, without those that were skipped
    lengths: tuple[int, ...]  # ticks of each
    texts: dict[str, tuple[str, ...]] = field(default_factory=dict)  # such as the language of each sample
    per_tick: frozenset[str] = frozenset()  # arrays whose second axis is that of the ticks
    skipped: tuple[tuple[int, str], ...] = ()  # samples that could not be read, and why
    layout: RawLayout | None = None  # of the streams, if they are not aligned
    copied: int = 0  # bytes that the device needs, from the first on


def plan(
    samples: Sequence[Arrays], stepped: Collection[str] = (), joinable: Collection[str] = ()
) -> tuple[tuple[Entry, ...], int]:
    """Place the arrays of some samples in a block: each is padded along its first axis to the longest of the batch.

    Args:
        samples: their arrays.
        stepped: arrays that are padded to a few lengths only: a kernel is prepared for each.
        joinable: arrays that are joined instead, without padding, if that saves much. The rows of a sample in such an
            array are in another one, `key + ROWS`, (B, N) int32, whose padding repeats the last one.

    Returns:
        the places, and the bytes of the block.

    Raises:
        RoboCacheError: samples have different arrays.
    """
    shapes = {}
    for key, first in samples[0].items() if samples else ():
        arrays = [sample[key] for sample in samples if key in sample]
        kinds = {(array.dtype, array.ndim, array.shape[1:]) for array in arrays}
        if len(arrays) != len(samples) or len(kinds) > 1:
            found = printable(sorted([(kind[0].str, *kind[1:]) for kind in kinds], key=str), 90)
            raise RoboCacheError(f"{printable(key, 40)}: its samples differ in {found}; map them to one layout")
        rows = (max(len(array) for array in arrays),) if first.ndim else ()
        if key in stepped:
            rows = (_step(*rows),)
        shapes[key] = first.dtype, (len(samples), *rows, *first.shape[1:])
        if key in joinable:
            used, padded = sum(map(len, arrays)), len(samples) * max(rows)
            width = math.prod(first.shape[1:]) * first.dtype.itemsize
            if (padded - used) * width - padded * _ROW.itemsize > MIN_JOIN_SAVING_BYTES:
                shapes[key] = first.dtype, (used, *first.shape[1:])
                shapes[key + ROWS] = _ROW, (len(samples), *rows)
    return _placed(shapes)


def place_arrays(arrays: Arrays) -> tuple[tuple[Entry, ...], int]:
    """Place arrays of all samples of a batch, (B, ...), in a block; see `plan`."""
    return _placed({key: (array.dtype, array.shape) for key, array in arrays.items()})


def _placed(shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> tuple[tuple[Entry, ...], int]:
    entries, offset = [], 0
    for key, (dtype, shape) in shapes.items():
        entries.append(Entry(key, dtype.str, shape, offset))
        offset += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    return tuple(entries), offset


def _step(rows: int) -> int:
    """The next length that is used: at most an eighth more."""
    step = max(8, 1 << max(rows.bit_length() - 4, 0))
    return -(-rows // step) * step


def write(samples: Sequence[Arrays], entries: Sequence[Entry], block: NDArray[np.uint8]) -> dict[int, Exception]:
    """Write the arrays into their places. The padding is zeros, and `ABSENT_STAMP_NS` for stamps and ticks in ns.

    Returns:
        why a sample, by its place in the batch, has an image that cannot be decoded.
    """
    undecodable: dict[int, Exception] = {}
    for entry in entries:
        out = view(entry, block)
        if entry.key not in samples[0]:  # it is not of the samples, whatever their arrays are called
            _write_rows(out, [len(sample[entry.key.removesuffix(ROWS)]) for sample in samples])
            continue
        arrays: Any = [sample[entry.key] for sample in samples]
        if out.ndim == 1:
            out[:] = arrays
            continue
        if out.ndim == arrays[0].ndim:
            np.concatenate(arrays, out=out)
            continue
        rows, padding = out.shape[1], ABSENT_STAMP_NS if is_time(entry.key) else 0
        for row, array in enumerate(arrays):
            count = len(array)
            if isinstance(array, np.ndarray):
                out[row, :count] = array
            else:
                try:
                    array.write(out[row, :count])
                except Exception as error:  # a damaged file raises whatever its library does
                    undecodable.setdefault(row, error)
            if count < rows:
                out[row, count:] = padding
    return undecodable


def _write_rows(out: NDArray[np.int32], counts: Sequence[int]) -> None:
    """Write which rows of a joined array each sample has, (B, N)."""
    ends = np.cumsum(counts)[:, None]
    np.minimum(ends - np.array(counts)[:, None] + np.arange(out.shape[1]), ends - 1, out=out, casting="same_kind")


def is_time(key: str) -> bool:
    """Whether an array has times in int64 ns."""
    return key.endswith("_ns")


def is_file(key: str) -> bool:
    """Whether an array is of encoded images, which the host hands to the decoder."""
    return key.endswith(("/files", "/ends"))


def view(entry: Entry, block: NDArray[np.uint8]) -> NDArray:  # type: ignore[type-arg]
    """An array in a block in host memory, without a copy."""
    dtype = np.dtype(entry.dtype)
    count = int(np.prod(entry.shape, dtype=np.int64))
    return block[entry.offset : entry.offset + count * dtype.itemsize].view(dtype).reshape(entry.shape)


def tensors(entries: Sequence[Entry], block: Tensor) -> dict[str, Tensor]:
    """The arrays of a block, (N,) uint8 on any device, as tensors that share its memory."""
    found, typed = {}, {}
    for entry in entries:
        dtype = _torch_dtype(entry.dtype)
        if dtype not in typed:
            typed[dtype] = block.view(dtype)
        strides = [math.prod(entry.shape[axis + 1 :]) for axis in range(len(entry.shape))]
        found[entry.key] = typed[dtype].as_strided(entry.shape, strides, entry.offset // dtype.itemsize)
    return found


@cache
def _torch_dtype(dtype: str) -> torch.dtype:
    import torch  # not needed in a worker

    return torch.from_numpy(np.empty(0, np.dtype(dtype))).dtype
