"""The rows of tables, as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
from numpy.typing import NDArray

deltalake = pytest.importorskip("deltalake")


def table(dataset: Path, name: str) -> Any:
    """A table as pyarrow, sorted by episode and tick."""
    rows = deltalake.DeltaTable(dataset / name).to_pyarrow_table()
    keys = ["episode", "tick"] if name == "ticks" else ["episode"]
    return rows.sort_by([(key, "ascending") for key in keys]).combine_chunks()


def lerobot_rows(dataset: Path) -> Any:
    """All rows of a LeRobot dataset."""
    return pyarrow.concat_tables(parquet.read_table(path) for path in sorted(dataset.glob("data/*/*.parquet")))


def numbers(column: Any) -> NDArray[Any]:
    """(T, ...) values of a column of numbers or lists of LeRobot; of one number per row as (T, 1)."""
    values = np.array(column.to_pylist())
    return values.reshape(len(values), *(values.shape[1:] or (1,)))


def stacked(column: Any, fill: float = 0) -> NDArray[Any]:
    """(T, D) fields of a struct, or (T, 1) numbers; `fill` where they are null."""
    kind = column.type
    fields = column.flatten() if pyarrow.types.is_struct(kind) else [column]
    return np.stack([np.array(field.fill_null(fill)) for field in fields], axis=1)
