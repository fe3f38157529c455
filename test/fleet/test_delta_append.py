"""Appends to Delta Lake tables in a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.datasets import open_dataset
from robocache_ros.errors import RoboCacheError
from robocache_ros.export.formats.delta.append_dataset import append_dataset
from robocache_ros.export.formats.delta.dataset_place import DatasetPlace
from robocache_ros.export.outputs.append_export import append_export

from ..export.delta.small_datasets import OPTIONS, append_together, assert_complete, small_dataset
from ..export.readers.sensor_recording import sensor_recording, sensor_spec
from .fault_proxy import Faults
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


def test_tables_in_a_bucket_are_read_as_a_dataset(s3: Bucket, tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path, 1)
    local = open_dataset("delta", dataset)[0]
    append_dataset(dataset, f"{s3.url}/lift")

    sample = open_dataset("delta", f"{s3.url}/lift", cache_dir=tmp_path / "cache")[0]

    assert all(np.array_equal(sample[key], value) for key, value in local.items())


def test_recordings_are_appended_to_a_bucket_by_an_export(s3: Bucket, tmp_path: Path) -> None:
    recordings = [sensor_recording(tmp_path / f"recording_{seed}", seed, 0.3) for seed in range(2)]

    results = [append_export([each], sensor_spec(), f"{s3.url}/lift", OPTIONS) for each in recordings]

    assert [result.notes[-1].partition(" were")[0] for result in results] == ["episodes 0 to 0", "episodes 1 to 1"]
    assert_complete(rows(f"{s3.url}/lift", "ticks"), rows(f"{s3.url}/lift", "episodes"), recordings)


def test_a_bucket_that_is_not_there_is_one_line(s3: Bucket, tmp_path: Path) -> None:
    with pytest.raises(RoboCacheError) as caught:
        append_dataset(small_dataset(tmp_path, 1), "s3://no-such-bucket/lift")

    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_bucket_without_conditional_puts_is_refused(faulty_s3: Bucket, faults: Faults, tmp_path: Path) -> None:
    faults.conditional_puts = "ignored"

    with pytest.raises(RoboCacheError, match="does not support conditional puts"):
        append_dataset(small_dataset(tmp_path, 1), f"{faulty_s3.url}/lift")


def test_appends_lose_nothing_while_some_requests_fail(
    faulty_s3: Bucket, faults: Faults, s3_server: str, tmp_path: Path
) -> None:
    datasets = [small_dataset(tmp_path, seed) for seed in range(2)]
    faults.share, faults.kinds = 0.1, ("500", "503")

    append_together(datasets, f"{faulty_s3.url}/lift")  # other processes: deltalake holds the lock of the proxy's

    assert faults.requests
    url = f"{faulty_s3.url}/lift"
    faults.share = 0.0
    local = deltalake.DeltaTable  # of the server, past the proxy
    found = {
        name: local(f"{url}/{name}", storage_options={**DatasetPlace(url).storage, "aws_endpoint_url": s3_server})
        for name in ("ticks", "episodes")
    }
    assert_complete(found["ticks"].to_pyarrow_table(), found["episodes"].to_pyarrow_table(), datasets)
