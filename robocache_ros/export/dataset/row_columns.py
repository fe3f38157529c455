"""The columns of a piece: the output of the engine for each row, in one file per column."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine.frames import Frames
from robocache_ros.spec.layout import Layout

FOLDER = "columns"
Rows = dict[str, NDArray[Any]]  # column -> (T,) or (T, K) values


def shapes(layout: Layout) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the dtype and the shape of a row of each column."""
    streams = len(layout.spec.streams)
    return {
        "ticks_ns": ("<i8", ()),
        "stamps_ns": ("<i8", (streams,)),  # as in the message, for lookups in the recording; 0 if there is none
        "valid": ("|u1", (streams,)),
        "age_ns": ("<i8", (streams,)),
        "fused": ("<f4", (layout.width,)),
        "sample_age_ms": ("<f4", (layout.ages,)),
    }


def rows_of(layout: Layout, frames: Frames) -> Rows:
    """Return the columns of frames."""
    latency = np.array([s.latency_ns for s in layout.spec.streams])
    ages = frames.sample_age_ms
    return {
        "ticks_ns": frames.ticks_ns,
        "stamps_ns": np.where(frames.valid > 0, frames.stamps_ns + latency, 0),
        "valid": frames.valid,
        "age_ns": frames.age_ns,
        "fused": frames.fused.numpy(),
        "sample_age_ms": np.zeros((len(frames), 0), np.float32) if ages is None else ages,
    }


class RowColumnsWriter:
    """Writes the columns of a piece.

    Args:
        folder: the folder of the piece.
        layout: the columns of the frames.
    """

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._layout = layout
        (folder / FOLDER).mkdir()
        self._shapes = shapes(layout)
        self._files: dict[str, BinaryIO] = {name: (folder / FOLDER / name).open("wb") for name in self._shapes}

    def append(self, frames: Frames) -> None:
        """Write the next rows."""
        for name, values in rows_of(self._layout, frames).items():
            self._files[name].write(np.ascontiguousarray(values, self._shapes[name][0]).data)

    def flush(self) -> None:
        """Make all rows readable."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Close the files."""
        with ExitStack() as stack:
            for file in self._files.values():
                stack.callback(file.close)


def load(folder: Path, layout: Layout) -> Rows:
    """Return the columns of a piece as memory-mapped arrays."""
    return dict(_loaded(folder, layout))


def _loaded(folder: Path, layout: Layout) -> Iterator[tuple[str, NDArray[Any]]]:
    rows = (folder / FOLDER / "ticks_ns").stat().st_size // 8
    for name, (dtype, shape) in shapes(layout).items():
        path = folder / FOLDER / name
        if path.stat().st_size:
            yield name, np.memmap(os.fspath(path), dtype, "r", shape=(rows, *shape))
        else:  # no columns; an empty file cannot be mapped
            yield name, np.zeros((rows, *shape), dtype)


def runs(states: NDArray[np.integer | np.bool_]) -> list[tuple[int, int, int]]:
    """Return (start, stop, state) of each run of equal values in the (T,) states."""
    if not len(states):
        return []
    edges = [0, *(np.flatnonzero(np.diff(states)) + 1).tolist(), len(states)]
    return [(start, stop, int(states[start])) for start, stop in pairwise(edges)]
