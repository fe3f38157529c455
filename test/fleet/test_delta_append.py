"""Appends to Delta Lake tables in a bucket."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from robocache_ros.datasets import open_dataset
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.executors import LocalProcesses
from robocache_ros.exporter.fleet import FleetTarget, State
from robocache_ros.exporter.pieces import RecordingTask
from robocache_ros.exporter.target import BUCKET_APPENDS
from robocache_ros.formats.delta.log import append_dataset, storage_options
from robocache_ros.storage.object_store import Listed, ObjectStore
from test.export.delta_tables import OPTIONS, append_together, assert_complete, small_dataset
from test.export.sensor_recording import sensor_recording, sensor_spec
from test.exporting import export
from test.fleet.conftest import hidden, objects, stopped_export

deltalake = pytest.importorskip("deltalake")


def rows(url: str, name: str, options: dict[str, str] | None = None) -> Any:
    """A table in a bucket."""
    return deltalake.DeltaTable(f"{url}/{name}", storage_options=options or storage_options(url)).to_pyarrow_table()


@pytest.mark.slow
def test_eight_processes_that_append_to_a_bucket_at_once_lose_nothing(s3, tmp_path):
    datasets = [small_dataset(tmp_path, seed) for seed in range(8)]
    out = f"{s3.url}/lift"
    firsts = append_together(datasets, out)
    assert sorted(firsts) == list(range(8))
    ticks = rows(out, "ticks")
    assert_complete(ticks, rows(out, "episodes"), datasets)
    assert {f"lift/{row['color']['path']}" for row in ticks.to_pylist()} <= set(s3.keys("lift/"))


def test_tables_in_a_bucket_are_read_as_a_dataset(s3, tmp_path):
    dataset = small_dataset(tmp_path, 1)
    local = open_dataset("delta", dataset)[0]
    append_dataset(dataset, f"{s3.url}/lift")
    sample = open_dataset("delta", f"{s3.url}/lift", cache_dir=tmp_path / "cache")[0]
    assert all(np.array_equal(sample[key], value) for key, value in local.items())


class OtherMachines(LocalProcesses):
    """An executor whose machines reach the bucket, and no folder of this one."""

    remote = True

    def map(self, work: Any, tasks: Any, progress: Any) -> Any:
        assert all(isinstance(task, RecordingTask) for task in tasks)
        assert not work.store.local
        return super().map(work, tasks, progress)


@pytest.mark.slow
def test_other_machines_convert_into_the_bucket_and_the_rows_are_those_of_this_one(s3, tmp_path):
    recordings = [sensor_recording(tmp_path / f"recording_{seed}", seed, 0.3) for seed in range(3)]
    for out, executor in ((f"{s3.url}/here", LocalProcesses(1)), (f"{s3.url}/there", OtherMachines(1))):
        export(recordings[:1], sensor_spec(), out, OPTIONS, append=True, executor=executor)
        export(recordings[1:], sensor_spec(), out, OPTIONS, append=True, executor=executor)
    here, there = objects(s3, "here/"), objects(s3, "there/")
    reports = ("report.html", "report.json", "_delta_log/00000000000000000001.json")  # which name folders and times
    for name in [name for name in here if "_delta_log" in name or name.endswith(reports)]:
        del here[name], there[name]
    assert there == here
    assert hidden(s3, "there/") == []  # the pieces were removed


def test_an_append_of_other_machines_tries_recordings_again_that_failed(s3, tmp_path):
    recording = sensor_recording(tmp_path / "recording", 0, 0.3)
    given = {"append": True, "executor": OtherMachines(1)}
    for _ in range(2):
        with pytest.raises(RoboCacheError, match="no 70 ticks in a row") as error:
            export([recording], sensor_spec(), f"{s3.url}/a", replace(OPTIONS, min_frames=70), **given)
    assert "fleet retry" not in str(error.value)


def test_what_stopped_appends_leave_in_the_bucket_is_removed(s3, tmp_path):
    recording = sensor_recording(tmp_path / "recording", 0, 0.3)
    given = {"options": OPTIONS, "append": True, "executor": OtherMachines(1)}
    stopped_export([recording], sensor_spec(), f"{s3.url}/a", **given)
    assert FleetTarget(f"{s3.url}/a").collect(timedelta(0)).pieces == 1
    assert s3.keys("a/") == []


def test_an_export_appends_to_a_bucket_or_replaces_the_tables(s3, tmp_path):
    recordings = [sensor_recording(tmp_path / f"recording_{seed}", seed, 0.3) for seed in range(2)]
    url = f"{s3.url}/a"
    results = [export([each], sensor_spec(), url, OPTIONS, append=True) for each in recordings]
    assert [result.notes[-1].partition(" were")[0] for result in results] == ["episodes 0 to 0", "episodes 1 to 1"]
    assert_complete(rows(url, "ticks"), rows(url, "episodes"), recordings)
    assert FleetTarget(url).status().state is State.complete
    export(recordings[:1], sensor_spec(), url, OPTIONS, overwrite=True)
    assert len(rows(url, "episodes")) == 1


def test_a_bucket_that_cannot_be_appended_to_is_refused_in_one_line(faulty_s3, faults, tmp_path):
    faulty_s3.put("a/meta/info.json", b"{}")  # of another format
    recording = sensor_recording(tmp_path / "recording", 0, 0.3)
    with pytest.raises(RoboCacheError, match="a: is not a Delta Lake dataset; choose another folder"):
        export([recording], sensor_spec(), f"{faulty_s3.url}/a", OPTIONS, append=True)
    assert faulty_s3.keys("a/") == ["a/meta/info.json"]
    faults.conditional_puts = "ignored"
    dataset = small_dataset(tmp_path, 1)
    for url, message in ((faulty_s3.url, "does not support conditional puts"), ("s3://no-such-bucket", None)):
        with pytest.raises(RoboCacheError, match=message) as caught:
            append_dataset(dataset, f"{url}/lift")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 200


@pytest.mark.slow
def test_appends_lose_nothing_while_some_requests_fail(faulty_s3, faults, s3_server, tmp_path):
    datasets = [small_dataset(tmp_path, seed) for seed in range(2)]
    faults.share, faults.kinds = 0.1, ("500", "503")
    append_together(datasets, f"{faulty_s3.url}/lift")  # other processes: deltalake holds the lock of the proxy's
    assert faults.requests
    url = f"{faulty_s3.url}/lift"
    faults.share = 0.0
    past_the_proxy = {**storage_options(url), "aws_endpoint_url": s3_server}
    assert_complete(*(rows(url, name, past_the_proxy) for name in ("ticks", "episodes")), datasets)


def test_an_append_in_progress_keeps_its_old_objects(s3, monkeypatch):
    for name in ("running/old", "running/new", "stopped/old"):
        s3.put(f"a/{BUCKET_APPENDS}/{name}", b"x")
    now, listed = datetime.now(timezone.utc), ObjectStore.listed

    def with_ages(self: ObjectStore, *args: Any, **given: Any) -> dict[str, Listed]:
        found = listed(self, *args, **given)
        return {name: Listed(x.size, now - timedelta(days=9 * name.endswith("old"))) for name, x in found.items()}

    monkeypatch.setattr(ObjectStore, "listed", with_ages)
    FleetTarget(f"{s3.url}/a").collect(timedelta(days=7))
    assert s3.keys("a/") == [f"a/{BUCKET_APPENDS}/running/new", f"a/{BUCKET_APPENDS}/running/old"]
