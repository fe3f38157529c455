"""Parquet tables that grow episode by episode and start a new file when one is large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.extras import need

# Of a row group, before compression. A reader takes a row group into memory as one, and none reads one over 2 GiB.
ROW_GROUP_BYTES = 32 << 20


def column(values: NDArray[Any]) -> Any:
    """A pyarrow array of (N,) values, (N, D) rows or (N, n, D) arrays; D = 1 of rows is a plain column, as for LeRobot.

    Arrays are lists of lists, which the `Array2D` of Hugging Face datasets reads.
    """
    pyarrow = need("pyarrow", "export")
    if values.ndim == 3:
        array = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
        for size in values.shape[:0:-1]:
            array = pyarrow.ListArray.from_arrays(np.arange(0, len(array) + 1, size, dtype=np.int32), array)
        return array
    if values.ndim == 1 or values.shape[1] == 1:
        return pyarrow.array(values.reshape(-1))
    flat = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])


class Table:
    """A table over numbered files, written in row groups of bounded size.

    Args:
        folder: the dataset's.
        path: the files' names, with {chunk_index} and {file_index}.
        file_mb: size from which on the next episode goes into a new file.
        chunk_files: files in a folder.
    """

    def __init__(self, folder: Path, path: str, file_mb: int, chunk_files: int) -> None:
        self._folder = folder
        self._path = path
        self._file_bytes = file_mb * 1_000_000
        self._chunk_files = chunk_files
        self._files = 0
        self._writer: Any = None
        self._file = folder
        self._waiting: list[Any] = []  # tables of the next row group
        self._waiting_bytes = 0

    def append(self, rows: Any) -> None:
        """Add rows, a pyarrow table; they are written once ROW_GROUP_BYTES are there, so `rows` is no larger itself."""
        if self._waiting_bytes + rows.nbytes > ROW_GROUP_BYTES:
            self._write()
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes

    def end_episode(self) -> tuple[int, int]:
        """Write the rows that wait; returns the chunk and file index of the episode, which has one file."""
        self._write()
        place = divmod(self._files - 1, self._chunk_files)
        if self._writer is not None and self._file.stat().st_size >= self._file_bytes:
            self.close()
        return place

    def close(self) -> None:
        """Write the file's footer, without which it cannot be read."""
        self._waiting, self._waiting_bytes = [], 0
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _write(self) -> None:
        if not self._waiting:
            return
        rows = need("pyarrow", "export").concat_tables(self._waiting).combine_chunks()
        self._waiting, self._waiting_bytes = [], 0
        if self._writer is None:
            chunk, file = divmod(self._files, self._chunk_files)
            self._file = self._folder / self._path.format(chunk_index=chunk, file_index=file)
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._writer = need("pyarrow.parquet", "export").ParquetWriter(self._file, rows.schema)
            self._files += 1
        self._writer.write_table(rows)
