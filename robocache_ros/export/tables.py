"""Parquet tables that grow episode by episode and start a new file when one is large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.extras import need


def column(values: NDArray[Any]) -> Any:
    """A pyarrow array of (N,) values or (N, D) rows; D = 1 makes a plain column, as LeRobot reads it."""
    pyarrow = need("pyarrow", "export")
    if values.ndim == 1 or values.shape[1] == 1:
        return pyarrow.array(values.reshape(-1))
    flat = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])


class Table:
    """A table over numbered files.

    Args:
        folder: the dataset's.
        path: the files' names, with {chunk_index} and {file_index}.
        file_mb: size from which on the next rows go into a new file.
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

    def write(self, columns: dict[str, Any]) -> tuple[int, int]:
        """Append rows, given as pyarrow arrays by column; returns the chunk and file index they are in."""
        table = need("pyarrow", "export").table(columns)
        if self._writer is not None and self._file.stat().st_size >= self._file_bytes:
            self.close()
        if self._writer is None:
            chunk, file = divmod(self._files, self._chunk_files)
            self._file = self._folder / self._path.format(chunk_index=chunk, file_index=file)
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._writer = need("pyarrow.parquet", "export").ParquetWriter(self._file, table.schema)
            self._files += 1
        self._writer.write_table(table)
        return divmod(self._files - 1, self._chunk_files)

    def close(self) -> None:
        """Write the file's footer, without which it cannot be read."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
