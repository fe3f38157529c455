"""Exports to a bucket: the bytes of a local export, and what the target holds before and after."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export_together, outputs_of
from robocache_ros.exporter.request import Output
from robocache_ros.exporter.shards import ShardResult
from robocache_ros.formats.registry import WRITERS
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.cache import cache_folder
from test.export.conftest import Elsewhere, contents, export_shard, named
from test.exporting import export
from test.fleet.conftest import NO_MEDIA, complete, objects, stopped_export
from test.fleet.s3 import Faults

ELSEWHERE = ("elsewhere", ("lerobot", "robomimic")), ("elsewhere", ("mcap", "diffusion_policy"))


@pytest.mark.parametrize(
    ("machines", "names"),
    [
        ("this one", ("lerobot", "delta")),
        ELSEWHERE[0],  # whose tasks put the files into the bucket, from where they are copied into the target
        *(pytest.param("this one", (name,), marks=pytest.mark.slow) for name in WRITERS),
        pytest.param(*ELSEWHERE[1], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_datasets_in_a_bucket_have_the_bytes_of_local_ones(s3, bags, spec, local, machines, names):
    options = DatasetOptions(formats=names, rate_hz=5, preset="ultrafast", codec="h264")
    executor = {"executor": Elsewhere(remote=True)} if machines == "elsewhere" else {}
    export(bags, spec, f"{s3.url}/out", options, **executor)
    assert complete(s3) == local(options)


def test_pieces_in_a_bucket_make_a_local_dataset(s3, bags, spec, local, tmp_path):
    for name in ("a", "b"):
        done = export(bags, spec, tmp_path / name / "out", NO_MEDIA, pieces=f"{s3.url}/pieces")
        assert any("reused" in note for note in done.notes) == (name == "b")
        assert set(contents(done.out)) == set(local())


@pytest.mark.slow
def test_no_process_leaves_copies_of_pieces(s3, bags, spec):
    options = DatasetOptions(formats=("lerobot", "webdataset", "mcap"), media="none")
    export(bags, spec, f"{s3.url}/out", options, jobs=2)
    assert [file.name for file in cache_folder("pieces").iterdir()] == ["cache.lock"]


def test_a_damaged_piece_in_a_bucket_is_deleted_and_made_again_by_the_same_call(s3, bags, spec, local):
    pieces = f"{s3.url}/pieces"
    export(bags, spec, f"{s3.url}/first", NO_MEDIA, pieces=pieces)
    damaged = next(key for key in s3.keys("pieces/") if key.endswith("/columns/fused"))
    data = s3.read(damaged)
    s3.put(damaged, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(RoboCacheError, match="was damaged and is deleted; run the same command again"):
        export(bags, spec, f"{s3.url}/out", NO_MEDIA, pieces=pieces)
    assert objects(s3) == {}
    export(bags, spec, f"{s3.url}/out", NO_MEDIA, pieces=pieces)
    assert objects(s3) == local()


# Shards of an export whose pieces and dataset are in a bucket.


@pytest.fixture
def run(s3, bags, spec) -> Callable[..., ShardResult]:
    """Runs one of two shards."""
    outputs, pieces = [Output("", spec, NO_MEDIA)], f"{s3.url}/pieces"
    return lambda index, **more: export_shard(bags, outputs, f"{s3.url}/out", f"{index}/2", pieces=pieces, **more)


def test_the_last_shard_writes_the_dataset_and_one_that_runs_again_leaves_it(run, s3, local):
    reported = [run(index) for index in (1, 0)]
    assert [(r.converted, r.total, r.written) for r in reported] == [(1, 2, "waiting"), (2, 2, "here")]
    assert objects(s3) == local()
    before = s3.read("out/.robocache/complete.json")
    seen: list[str] = []
    for overwrite in (False, True):
        assert run(0, overwrite=overwrite, progress=named(seen)).written == "before"
    assert (seen, s3.read("out/.robocache/complete.json")) == ([], before)


def test_other_objects_in_the_target_stop_a_shard_before_it_converts(run, s3):
    s3.put("out/notes.txt", b"mine")
    seen: list[str] = []
    with pytest.raises(RoboCacheError, match="exists; choose another folder"):
        run(0, progress=named(seen))
    assert seen == []


@pytest.mark.slow
def test_shards_replace_a_dataset(run, s3, bags, spec, local):
    export(bags[:1], spec, f"{s3.url}/out", NO_MEDIA)
    for index in range(2):
        assert objects(s3) != local()
        run(index, overwrite=True)
    assert objects(s3) == local()


def test_two_shards_that_end_at_once_write_one_dataset(run, s3, local):
    with ThreadPoolExecutor(2) as pool:
        assert len(list(pool.map(run, range(2)))) == 2
    assert objects(s3) == local()


# Tasks of other machines.


@pytest.mark.slow
def test_a_dataset_is_replaced(s3, bags, spec, local):
    mcap = DatasetOptions(formats=("mcap",), media="none")
    export(bags, spec, f"{s3.url}/out", mcap, executor=Elsewhere(remote=True))
    assert objects(s3) == local(mcap)
    export(bags, spec, f"{s3.url}/out", NO_MEDIA, executor=Elsewhere(remote=True), overwrite=True)
    assert objects(s3) == local()


@pytest.mark.slow
def test_several_datasets_are_listed_as_local_ones(s3, bags, spec, tmp_path):
    outputs = outputs_of([("panda", spec)], [10, 5], DatasetOptions(formats=("webdataset", "mcap"), media="none"))
    export_together(bags[:1], outputs, f"{s3.url}/out", executor=Elsewhere(remote=True))
    export_together(bags[:1], outputs, tmp_path / "out")
    assert objects(s3) == contents(tmp_path / "out")


def test_the_target_is_empty_until_all_files_are_written(s3, bags, spec):
    found = []

    class Watched(Elsewhere):
        def map(self, *given: Any) -> Any:
            yield from super().map(*given)
            found.append(objects(s3))

    options = DatasetOptions(formats=("robomimic",), media="none")
    export(bags, spec, f"{s3.url}/out", options, executor=Watched(remote=True))
    assert found == [{}, {}]
    assert "dataset.hdf5" in objects(s3)


# Exports from a bucket to a bucket.


def fetched(faults: Faults, recording: str) -> int:
    """The bytes of a recording that were sent."""
    return sum(each.sent for each in faults.requests if each.method == "GET" and f"/raw/{recording}/" in each.path)


def test_an_export_that_continues_downloads_no_recording_that_is_converted(
    faulty_s3, faults, bags, spec, local, tmp_path, monkeypatch
):
    recordings = [faulty_s3.put(f"raw/{bag.name}", bag) for bag in bags]

    stopped_export(recordings, spec, f"{faulty_s3.url}/out")
    size = sum(file.stat().st_size for file in bags[0].iterdir())
    assert fetched(faults, bags[0].name) >= size // 2
    faults.requests.clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another machine"))
    export(recordings, spec, f"{faulty_s3.url}/out", NO_MEDIA)
    assert sum(fetched(faults, bag.name) for bag in bags[1:]) > 0
    assert fetched(faults, bags[0].name) < size // 10
    assert set(objects(faulty_s3)) == set(local())
