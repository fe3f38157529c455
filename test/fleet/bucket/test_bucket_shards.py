"""Shards of an export whose pieces and dataset are in a bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import Output, export
from robocache_ros.exporter.shards import ShardResult
from robocache_ros.spec import FusionSpec
from test.export.conftest import export_shard, named
from test.fleet.bucket.conftest import NO_MEDIA, Contents, objects
from test.fleet.s3_server import Bucket

Run = Callable[..., ShardResult]


@pytest.fixture
def run(s3: Bucket, bags: list[Path], spec: FusionSpec) -> Run:
    """Runs one of two shards."""

    def one(index: int, **more: Any) -> ShardResult:
        outputs, pieces = [Output("", spec, NO_MEDIA)], f"{s3.url}/pieces"
        return export_shard(bags, outputs, f"{s3.url}/out", f"{index}/2", pieces=pieces, **more)

    return one


def test_the_last_shard_writes_the_dataset_and_one_that_runs_again_leaves_it(
    run: Run, s3: Bucket, local: Callable[..., Contents]
) -> None:
    reported = [run(index) for index in (1, 0)]
    assert [(r.converted, r.total, r.written) for r in reported] == [(1, 2, "waiting"), (2, 2, "here")]
    assert objects(s3) == local()
    before = s3.read("out/.robocache/complete.json")
    seen: list[str] = []
    for overwrite in (False, True):
        assert run(0, overwrite=overwrite, progress=named(seen)).written == "before"
    assert (seen, s3.read("out/.robocache/complete.json")) == ([], before)


def test_other_objects_in_the_target_stop_a_shard_before_it_converts(run: Run, s3: Bucket) -> None:
    s3.put("out/notes.txt", b"mine")
    seen: list[str] = []
    with pytest.raises(RoboCacheError, match="exists; choose another folder"):
        run(0, progress=named(seen))
    assert seen == []


@pytest.mark.slow
def test_shards_replace_a_dataset(
    run: Run, s3: Bucket, bags: list[Path], spec: FusionSpec, local: Callable[..., Contents]
) -> None:
    export(bags[:1], spec, f"{s3.url}/out", NO_MEDIA)
    for index in range(2):
        assert objects(s3) != local()
        run(index, overwrite=True)
    assert objects(s3) == local()


def test_two_shards_that_end_at_once_write_one_dataset(run: Run, s3: Bucket, local: Callable[..., Contents]) -> None:
    reported: list[ShardResult] = []
    both = [threading.Thread(target=lambda index=index: reported.append(run(index))) for index in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(reported) == 2
    assert objects(s3) == local()
