"""A file of synthetic trajectories, and how they are usually loaded: by h5py and NumPy, in a DataLoader's workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from robocache_ros.datasets import SourceEpisode, Stream
from robocache_ros.extras import need
from robocache_ros.units import NS_PER_S

SECONDS = 3
STREAMS = {"features": (30, 256), "joints": (100, 7), "forces": (333, 7)}  # rate in Hz and columns: 270 together
TICKS = SECONDS * 50


def write_trajectories(path: Path, count: int) -> None:
    """Write trajectories with jittered stamps, as `Hdf5Trajectories` reads them."""
    random = np.random.default_rng(0)
    pools = {
        name: random.standard_normal((16, SECONDS * rate + 1, width)).astype(np.float32)
        for name, (rate, width) in STREAMS.items()
    }
    h5py = need("h5py", "datasets")
    with h5py.File(path, "w", libver="latest") as file:
        for number in range(count):
            group = h5py.h5g.create(file.id, f"{number:06d}".encode())  # quicker than File's own calls
            for name, (rate, _) in STREAMS.items():
                stamps = np.arange(SECONDS * rate + 1) * NS_PER_S // rate
                stamps[1:-1] += random.integers(0, NS_PER_S // rate // 3, len(stamps) - 2)
                stream = h5py.h5g.create(group, name.encode())
                for key, array in ((b"values", pools[name][number % 16]), (b"stamps_ns", stamps)):
                    kind, space = h5py.h5t.py_create(array.dtype), h5py.h5s.create_simple(array.shape)
                    h5py.h5d.create(stream, key, kind, space).write(h5py.h5s.ALL, h5py.h5s.ALL, array)


class InterpTrajectories(Dataset[torch.Tensor]):
    """Each column by np.interp."""

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count
        self._file: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._file is None:
            self._file = need("h5py", "datasets").File(self.path, "r")
        group = self._file[f"{index:06d}"]
        ticks = np.arange(TICKS) * (NS_PER_S // 50)
        parts = [self.aligned(group[name]["values"][()], group[name]["stamps_ns"][()], ticks) for name in STREAMS]
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def aligned(self, values: NDArray[np.float32], stamps: NDArray[Any], ticks: NDArray[Any]) -> NDArray[np.float32]:
        """(TICKS, columns) of a stream."""
        columns = [np.interp(ticks, stamps, column) for column in values.T]
        return np.stack(columns, axis=1).astype(np.float32)


class VectorisedTrajectories(InterpTrajectories):
    """All columns of a stream at once, by searchsorted."""

    def aligned(self, values: NDArray[np.float32], stamps: NDArray[Any], ticks: NDArray[Any]) -> NDArray[np.float32]:
        """(TICKS, columns) of a stream."""
        upper = np.clip(np.searchsorted(stamps, ticks, "right"), 1, len(stamps) - 1)
        before, after = stamps[upper - 1], stamps[upper]
        share = ((ticks - before) / (after - before)).astype(np.float32)[:, None]
        first = values[upper - 1]
        aligned: NDArray[np.float32] = first + share * (values[upper] - first)
        return aligned


class JpegEpisodes:
    """Episodes of one camera whose images are jpeg files in memory.

    Args:
        count: episodes.
        files: the images of an episode, at 30 Hz; episode i begins with the i-th.
    """

    def __init__(self, count: int, files: list[bytes]) -> None:
        self._count, self._files = count, files

    def __len__(self) -> int:
        return self._count

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        return 0, (len(self._files) - 1) * NS_PER_S // 30

    def read(self, index: int) -> SourceEpisode:
        """Return an episode."""
        begin = index % len(self._files)
        stamps = np.arange(len(self._files)) * NS_PER_S // 30
        stream = Stream("vision/front", stamps, [*self._files[begin:], *self._files[:begin]], True)
        return SourceEpisode({stream.name: stream}, "", "jpeg", f"episode {index}")
