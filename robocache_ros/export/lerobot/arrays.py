"""Storage of voxels and depth images: array tables in addition to the tables of LeRobot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.lerobot.image_storage import Used
from robocache_ros.export.lerobot.media_summary import MediaSummary
from robocache_ros.export.lerobot.parquet_tables import Table, column
from robocache_ros.export.lerobot.statistics import Stats
from robocache_ros.extras import need
from robocache_ros.spec import StreamSpec

ARRAYS_PATH = "arrays/{name}/chunk-{{chunk_index:03d}}/file-{{file_index:03d}}.parquet"
ARRAYS_FILE_MB = 100
ARRAY_BYTES = 1 << 30  # maximum size of one array; row groups above 2 GiB cannot be read


def arrays_file(stream: str) -> str:
    """Return the path of the arrays of a stream in a piece."""
    return f"arrays/{stream}.parquet"


def read_arrays(dataset: str | Path, stream: str, episode: int = 0) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Read the arrays of a stream in an episode of a dataset.

    Returns:
        (K, 2) int64 [start, stop) frames for which each array is valid; (K, ...) the arrays, occupancy as uint8.

    Errors:
        RoboCacheError: the dataset has no arrays of this stream.
    """
    parquet = need("pyarrow.parquet", "export")
    told = json.loads((Path(dataset) / "meta" / "robocache.json").read_text(encoding="utf-8"))["arrays"]
    if stream not in told:
        raise RoboCacheError(f"{stream}: {dataset} has no arrays of it; it has those of {', '.join(told) or 'none'}")
    shape, dtype = told[stream]["shape"], told[stream]["dtype"]
    files = sorted((Path(dataset) / "arrays" / stream).glob("chunk-*/file-*.parquet"))
    rows = [row for f in files for row in parquet.read_table(f, filters=[("episode_index", "=", episode)]).to_pylist()]
    frames = np.array([(row["frame_from"], row["frame_to"]) for row in rows], np.int64).reshape(-1, 2)
    values = np.frombuffer(b"".join(row["data"] for row in rows), np.uint8 if dtype == "bits" else dtype)
    if dtype == "bits":  # each array is padded to a byte
        bits = np.unpackbits(values.reshape(len(rows), -1), axis=1, count=int(np.prod(shape)), bitorder="little")
        return frames, bits.reshape(len(rows), *shape)
    return frames, values.reshape(len(rows), *shape)


class ArrayColumn:
    """Stores voxels and images that are not 8-bit (depth). Each distinct array is stored once, with its ticks.

    Arrays are not in the data table, because LeRobot's statistics and checks would treat each number as a dimension.
    Columns: episode_index, frame_from, frame_to (exclusive), stamp_ns, data (the bytes of the array in C order,
    little endian; occupancy as bits, least significant bit first).
    """

    def __init__(self, folder: Path, stream: StreamSpec) -> None:
        self._name = stream.name
        self._table = Table(folder, arrays_file(stream.name))
        self._bits = stream.voxels is not None and stream.voxels.reduction.is_flag
        self._shape: list[int] = []
        self._dtype = ""
        self._episode = -1
        self._frame = 0
        self._open: tuple[int, int, int, bytes] | None = None  # start frame, stop frame, stamp, data

    def begin_episode(self) -> None:
        """Start an episode."""
        self._episode += 1
        self._frame = 0
        self._open = None

    def write(self, values: Tensor, used: Used) -> dict[str, Any]:
        """Store each distinct array; return no columns for the data table."""
        arrays = values.cpu().numpy()
        self._shape, self._dtype = list(arrays.shape[1:]), arrays.dtype.name
        rows = []
        for array, stamp in zip(arrays, used.tolist(), strict=True):
            if stamp >= 0:
                if self._open and self._open[2] == stamp:
                    self._open = (self._open[0], self._frame + 1, *self._open[2:])
                else:
                    if self._open:
                        rows.append(self._open)
                    self._open = (self._frame, self._frame + 1, stamp, self._packed(array))
            self._frame += 1
        self._append(rows)
        return {}

    def end_episode(self) -> None:
        """Write the episode's last arrays."""
        self._append([self._open] if self._open else [])
        self._open = None
        self._table.end_episode()

    def _packed(self, array: NDArray[Any]) -> bytes:
        packed = np.packbits(array, bitorder="little") if self._bits else np.ascontiguousarray(array)
        if packed.nbytes > ARRAY_BYTES:
            raise RoboCacheError(f"{self._name}: an array of {packed.nbytes:,} bytes; make its grid or image smaller")
        return packed.tobytes()

    def _append(self, rows: list[tuple[int, int, int, bytes]]) -> None:
        if rows:
            starts, ends, stamps, data = zip(*rows, strict=True)
            pyarrow = need("pyarrow", "export")
            columns = {
                "episode_index": column(np.full(len(starts), self._episode)),
                "frame_from": column(np.array(starts)),
                "frame_to": column(np.array(ends)),
                "stamp_ns": column(np.array(stamps)),
                "data": pyarrow.array(data, pyarrow.binary()),
            }
            self._table.append(pyarrow.table(columns))

    def episode_stats(self) -> dict[str, Stats]:
        """Return no statistics."""
        return {}

    def summary(self) -> MediaSummary:
        """Return the summary for the dataset."""
        return MediaSummary("arrays", self._name, tuple(self._shape), "bits" if self._bits else self._dtype)

    def close(self, *, complete: bool) -> None:
        """Finish the open file."""
        self._table.close()
