"""Exports to a bucket: the bytes of a local export, and what the target holds before and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.formats.registry import WRITERS
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.cache import cache_folder
from test.fleet.bucket.conftest import NO_MEDIA, Contents, hidden, objects
from test.fleet.s3_server import Bucket


@pytest.mark.parametrize(
    "name", [name if name in ("lerobot", "delta") else pytest.param(name, marks=pytest.mark.slow) for name in WRITERS]
)
def test_a_dataset_in_a_bucket_has_the_bytes_of_a_local_one(
    s3: Bucket, bags: list[Path], spec: FusionSpec, local: Callable[..., Contents], name: str
) -> None:
    options = DatasetOptions(formats=(name,), rate_hz=5, preset="ultrafast", codec="h264")
    export(bags, spec, f"{s3.url}/out", options)
    assert objects(s3) == local(options)
    assert hidden(s3) == [".robocache/complete.json"]


def test_several_formats_in_a_bucket_have_the_bytes_of_local_ones(
    s3: Bucket, bags: list[Path], spec: FusionSpec, local: Callable[..., Contents]
) -> None:
    options = DatasetOptions(formats=("lerobot", "webdataset"), media="none")
    export(bags, spec, f"{s3.url}/out", options)
    assert objects(s3) == local(options)


def test_pieces_in_a_bucket_make_a_local_dataset(
    s3: Bucket, bags: list[Path], spec: FusionSpec, local: Callable[..., Contents], tmp_path: Path
) -> None:
    for name, reused in (("a", 0), ("b", 2)):
        done = export(bags, spec, tmp_path / name / "out", NO_MEDIA, pieces=f"{s3.url}/pieces")
        assert any("reused" in note for note in done.notes) == bool(reused)
        assert {f.relative_to(done.out).as_posix() for f in done.out.rglob("*") if f.is_file()} == set(local())


def test_the_info_of_a_dataset_is_put_last(s3: Bucket, bags: list[Path], spec: FusionSpec) -> None:
    export(bags, spec, f"{s3.url}/out", NO_MEDIA)
    listed = s3.client.list_objects_v2(Bucket=s3.name, Prefix="out/")["Contents"]
    times = {found["Key"]: found["LastModified"] for found in listed if "/.robocache/" not in found["Key"]}
    assert max(times.values()) == times["out/meta/info.json"]


def test_a_dataset_is_unchanged_without_overwrite(s3: Bucket, bags: list[Path], spec: FusionSpec) -> None:
    s3.put("out/meta/info.json", b"old")
    with pytest.raises(RoboCacheError, match=r"out: exists; choose another folder, or replace it with --overwrite$"):
        export(bags, spec, f"{s3.url}/out", NO_MEDIA)
    assert {**objects(s3)} == {"meta/info.json": b"old"}


@pytest.mark.slow
def test_no_process_leaves_copies_of_pieces(s3: Bucket, bags: list[Path], spec: FusionSpec) -> None:
    options = DatasetOptions(formats=("lerobot", "webdataset", "mcap"), media="none")
    export(bags, spec, f"{s3.url}/out", options, jobs=2)
    assert [file.name for file in cache_folder("pieces").iterdir()] == ["cache.lock"]


def test_a_damaged_piece_in_a_bucket_is_deleted_and_made_again_by_the_same_call(
    s3: Bucket, bags: list[Path], spec: FusionSpec, local: Callable[..., Contents]
) -> None:
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
