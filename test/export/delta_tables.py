"""Small Delta Lake datasets, their rows as arrays, and processes that append at the same time."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from numpy.typing import NDArray

from robocache_ros.formats.delta.log import append_dataset
from robocache_ros.spec.dataset import DatasetOptions
from test.export.sensor_recording import sensor_recording, sensor_spec
from test.exporting import export

OPTIONS = DatasetOptions(formats=("delta",), media="image", task="lift")


def small_dataset(folder: Path, seed: int, seconds: float = 0.3) -> Path:
    """A dataset of one recording."""
    recording = sensor_recording(folder / f"recording_{seed}", seed, seconds)
    return export([recording], sensor_spec(), folder / f"dataset_{seed}", OPTIONS, report=False).out


def append_together(datasets: Sequence[Path], out: str) -> list[int]:
    """Append each dataset in a process of its own, all at the same time; return the first number of each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([append_dataset.__module__])
    # The server of processes may have an older environment.
    environment = f"import os; os.environ.update({dict(os.environ)!r})"
    with ProcessPoolExecutor(len(datasets), context, exec, (environment,)) as pool:
        return [done.first for done in pool.map(append_dataset, datasets, repeat(out))]


def assert_complete(ticks: Any, episodes: Any, datasets: Sequence[Path]) -> None:
    """Compare tables (pyarrow) with the datasets that were appended to them: nothing is lost, and nothing is twice."""
    rows = episodes.to_pylist()
    numbers = [row["episode"] for row in rows]
    assert sorted(Path(row["recording"]).name[-1] for row in rows) == sorted(each.name[-1] for each in datasets)
    assert len(set(numbers)) == len(numbers)
    assert Counter(ticks["episode"].to_pylist()) == {row["episode"]: row["length"] for row in rows}


# The rows of tables, as arrays.

deltalake = pytest.importorskip("deltalake")


def table(dataset: Path, name: str) -> Any:
    """A table as pyarrow, sorted by episode and tick."""
    rows = deltalake.DeltaTable(dataset / name).to_pyarrow_table()
    keys = ["episode", "tick"] if name == "ticks" else ["episode"]
    return rows.sort_by([(key, "ascending") for key in keys]).combine_chunks()


def numbers(column: Any) -> NDArray[Any]:
    """(T, ...) values of a column of numbers or lists of LeRobot; of one number per row as (T, 1)."""
    values = np.array(column.to_pylist())
    return values.reshape(len(values), *(values.shape[1:] or (1,)))


def stacked(column: Any, fill: float = 0) -> NDArray[Any]:
    """(T, D) fields of a struct, or (T, 1) numbers; `fill` where they are null."""
    kind = column.type
    fields = column.flatten() if pyarrow.types.is_struct(kind) else [column]
    return np.stack([np.array(field.fill_null(fill)) for field in fields], axis=1)
