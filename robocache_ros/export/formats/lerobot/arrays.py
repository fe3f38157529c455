"""Storage of voxels and depth images: array tables in addition to the tables of LeRobot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.dataset.episode import Episode
from robocache_ros.export.dataset.exported_dataset import ExportedDataset
from robocache_ros.export.episodes.cutter import runs
from robocache_ros.export.formats.lerobot.parquet_tables import Table, column
from robocache_ros.extras import need

ARRAYS_PATH = "arrays/{name}/chunk-{{chunk_index:03d}}/file-{{file_index:03d}}.parquet"
ARRAYS_FILE_MB = 100


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


def write_arrays(dataset: ExportedDataset, folder: Path, chunk_files: int) -> dict[str, Any]:
    """Write the voxels and the images that are not 8-bit (depth) of a dataset; return what describes them.

    Depth images of which there are videos are left out.

    Arrays are not in the data table, because LeRobot's statistics and checks would treat each number as a dimension.
    Columns: episode_index, frame_from, frame_to (exclusive), stamp_ns, data (the bytes of the array in C order,
    little endian; occupancy as bits, least significant bit first).
    """
    stored = {name: info for name, info in dataset.arrays.items() if name not in dataset.depth_videos}
    for name in stored:
        table = Table(folder, ARRAYS_PATH.format(name=name), ARRAYS_FILE_MB, chunk_files)
        with closing(table):
            for episode in dataset.episodes:
                for rows in _rows(episode, name):
                    table.append(rows)
                table.end_episode()
    return {
        name: {"path": ARRAYS_PATH.format(name=name), "shape": list(info.shape), "dtype": info.dtype}
        for name, info in stored.items()
    }


def _rows(episode: Episode, stream: str) -> Iterator[Any]:
    """Yield a row for each distinct array of an episode."""
    pyarrow = need("pyarrow", "export")
    arrays = episode.arrays(stream)
    stamps = episode.stamps_ns[:, episode.layout.names.index(stream)]
    for start, stop, sample in runs(arrays.samples):
        if sample >= 0:
            columns = {
                "episode_index": column(np.array([episode.index])),
                "frame_from": column(np.array([start])),
                "frame_to": column(np.array([stop])),
                "stamp_ns": column(stamps[start : start + 1]),
                "data": pyarrow.array([arrays.data(start)], pyarrow.binary()),
            }
            yield pyarrow.table(columns)
