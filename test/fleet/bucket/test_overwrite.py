"""Datasets in a bucket that are replaced, and exports that were killed while they put files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.exporter.target import BucketTarget, TargetPlan
from robocache_ros.formats.dataset_folder import sha256
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.object_store import ObjectStore
from test.fleet.bucket.conftest import NO_MEDIA, Contents, contents, hidden, objects
from test.fleet.s3_server import Bucket

OTHER = DatasetOptions(formats=("webdataset",), media="none")


class Killed(BaseException):
    """The process is gone."""


def written(folder: Path, content: str, *names: str) -> Path:
    for name in names or ("meta/info.json", "data/rows"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def put(target: BucketTarget, folder: Path, digest: str = "a", *, overwrite: bool = False) -> None:
    plan, _ = target.begin(digest, 1, overwrite=overwrite)
    target.publish(plan, folder, ["meta"])
    target.clear()


@pytest.fixture
def target(s3: Bucket) -> BucketTarget:
    return BucketTarget(f"{s3.url}/out")


def test_overwrite_replaces_a_dataset_and_removes_its_other_files(
    s3: Bucket, bags: list[Path], spec: FusionSpec, local: Callable[..., Contents]
) -> None:
    export(bags[:1], spec, f"{s3.url}/out", OTHER)
    s3.put("out/notes.txt", b"mine")
    export(bags, spec, f"{s3.url}/out", NO_MEDIA, overwrite=True)
    assert objects(s3) == {**local(), "notes.txt": b"mine"}
    assert hidden(s3) == [".robocache/complete.json"]


def test_what_is_not_a_dataset_is_not_overwritten(s3: Bucket, bags: list[Path], spec: FusionSpec) -> None:
    s3.put("out/notes.txt", b"mine")
    with pytest.raises(RoboCacheError, match=r"not a dataset .*, so it is not overwritten; choose another folder"):
        export(bags, spec, f"{s3.url}/out", NO_MEDIA, overwrite=True)
    assert s3.keys("") == ["out/notes.txt"]


@pytest.mark.parametrize(
    "requests", [4, 10, *(pytest.param(number, marks=pytest.mark.slow) for number in (0, 2, 6, 8, 12, 14))]
)
def test_readers_never_find_half_a_dataset_wherever_an_export_is_killed(
    s3: Bucket, target: BucketTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    old = written(tmp_path / "old", "old", "meta/info.json", "data/rows", "videos/a")
    new = written(tmp_path / "new", "new", "meta/info.json", "meta/tasks", "data/rows")
    put(target, old)
    sent = iter(range(requests))
    ask = ObjectStore._request

    def killed(store: ObjectStore, name: str, request: Any, doing: str = "read") -> Any:
        if doing in ("write", "copy", "delete") and next(sent, None) is None:
            raise Killed
        return ask(store, name, request, doing)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "_request", killed)
        with suppress(Killed):
            put(BucketTarget(target.store.url), new, "b", overwrite=True)
    found = objects(s3)
    assert "meta/info.json" not in found or found in (contents(old), contents(new))
    put(BucketTarget(target.store.url), new, "b", overwrite=True)
    assert objects(s3) == contents(new)


def test_the_old_dataset_is_there_until_all_of_the_new_one_is_in_the_bucket(
    s3: Bucket, target: BucketTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, put_file = written(tmp_path / "old", "old"), ObjectStore.put_file
    put(target, old)
    uploaded: list[str] = []

    def upload(store: ObjectStore, name: str, local: Path) -> None:
        assert objects(s3) == contents(old)
        put_file(store, name, local)
        uploaded.append(name)

    monkeypatch.setattr(ObjectStore, "put_file", upload)
    put(BucketTarget(target.store.url), written(tmp_path / "new", "new"), "b", overwrite=True)
    assert sorted(uploaded) == ["data/rows", "meta/info.json"]
    assert objects(s3) == contents(tmp_path / "new")


def test_files_of_a_stopped_export_are_removed_by_the_next_one(
    s3: Bucket, target: BucketTarget, tmp_path: Path
) -> None:
    plan, _ = target.begin("a", 1, overwrite=False)
    target.record_files(plan, {"videos/a": "1"})
    s3.put("out/videos/a", b"half")
    target.stop(plan)
    new = written(tmp_path / "new", "new")
    put(BucketTarget(target.store.url), new, "b")
    assert objects(s3) == contents(new)


def test_an_export_with_other_results_of_the_same_plan_is_refused(target: BucketTarget, tmp_path: Path) -> None:
    plan, _ = target.begin("a", 1, overwrite=False)
    target.record_files(plan, {"data/rows": "1"})
    with pytest.raises(RoboCacheError, match="another export of this plan has other results"):
        target.publish(plan, written(tmp_path, "new"), ["meta"])


def test_an_export_whose_place_is_taken_puts_nothing(s3: Bucket, target: BucketTarget, tmp_path: Path) -> None:
    plan, _ = target.begin("a", 1, overwrite=False)
    target.stop(plan)
    BucketTarget(target.store.url).begin("b", 1, overwrite=False)
    with pytest.raises(RoboCacheError, match="another export has taken the place of this one"):
        target.publish(plan, written(tmp_path, "new"), ["meta"])
    assert objects(s3) == {}


def test_a_dataset_that_is_completed_while_another_export_begins_is_not_replaced(
    s3: Bucket, target: BucketTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = written(tmp_path, "first"), BucketTarget.current
    plan, _ = target.begin("a", 1, overwrite=False)
    target.record_files(plan, {name: sha256(folder / name) for name in contents(folder)})
    calls: list[None] = []

    def current(other: BucketTarget) -> TargetPlan | None:
        found = seen(other)
        calls.append(None)
        if len(calls) == 1:  # the other export was in progress
            target.publish(plan, folder, ["meta"])
            target.clear()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(BucketTarget, "current", current)
        with pytest.raises(RoboCacheError, match="exists; choose another folder, or replace it with --overwrite"):
            BucketTarget(target.store.url).begin("b", 1, overwrite=False)
    assert objects(s3) == contents(folder)
    assert hidden(s3) == [".robocache/complete.json"]
