"""Appends to Delta Lake tables in a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from robocache_ros.export.formats.delta.dataset_place import DatasetPlace

from ..export.delta.small_datasets import append_together, assert_complete, small_dataset
from .s3_server import Bucket

deltalake = pytest.importorskip("deltalake")


def rows(url: str, name: str) -> Any:
    """A table in a bucket."""
    return deltalake.DeltaTable(f"{url}/{name}", storage_options=DatasetPlace(url).storage).to_pyarrow_table()


def test_eight_processes_that_append_to_a_bucket_at_once_lose_nothing(s3: Bucket, tmp_path: Path) -> None:
    datasets = [small_dataset(tmp_path, seed) for seed in range(8)]
    out = f"{s3.url}/lift"

    firsts = append_together(datasets, out)

    assert sorted(firsts) == list(range(8))
    ticks = rows(out, "ticks")
    assert_complete(ticks, rows(out, "episodes"), datasets)
    keys = set(s3.keys("lift/"))
    assert {f"lift/{row['color']['path']}" for row in ticks.to_pylist()} <= keys
