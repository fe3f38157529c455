"""Exports to a bucket that fails, that is replaced, or that another export writes to: nothing lost, nothing twice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.cli import progress
from robocache_ros.cli.program import LINE_CHARACTERS
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.executors import LocalProcesses
from robocache_ros.exporter.progress import Advanced, Converted, Event, Merging, Progress
from robocache_ros.exporter.target import BucketTarget, TargetPlan
from robocache_ros.formats.dataset_folder import sha256
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.errors import StoreError, StoreProblem
from robocache_ros.storage.object_store import ObjectStore
from test.export.conftest import ROOT, written
from test.exporting import export
from test.fleet.conftest import NO_MEDIA, complete, contents, objects, stopped_export


@pytest.fixture
def out(faulty_s3, monkeypatch) -> str:
    """A target whose requests go through the proxy; botocore does not repeat them."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    return f"{faulty_s3.url}/out"


def test_requests_that_fail_change_nothing(out, faulty_s3, faults, bags, spec, local):
    faults.share = 0.1
    export(bags, spec, out, NO_MEDIA)
    assert complete(faulty_s3) == local()


@pytest.mark.parametrize(
    ("fault", "value", "message"),
    [
        ("conditional_puts", "refused", "does not support conditional puts"),
        ("conditional_puts", "ignored", "does not support conditional puts"),
        ("deny_writes", True, r"^s3://.*: no permission to write; check the credentials and the perm"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_refused_before_a_recording_is_read(
    out, faulty_s3, faults, spec, tmp_path, fault, value, message
):
    setattr(faults, fault, value)
    with pytest.raises(RoboCacheError, match=message) as error:
        export([tmp_path / "not read"], spec, out, NO_MEDIA)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200
    assert faulty_s3.keys("") == []


def test_expired_credentials_are_one_line_and_the_same_call_continues(out, faulty_s3, faults, bags, spec, local):
    converted: list[bool] = []

    def expire(event: Event) -> None:
        if isinstance(event, Converted):
            faults.expired = not converted
            converted.append(event.reused)

    expired = r"^s3://.*the credentials have expired; renew them and run the same"
    with pytest.raises(RoboCacheError, match=expired) as error:
        export(bags, spec, out, NO_MEDIA, progress=expire)
    assert "\n" not in str(error.value)
    faults.expired = False
    export(bags, spec, out, NO_MEDIA, progress=expire)
    assert converted == [False, True, False]
    assert objects(faulty_s3) == local()


class ExpiredElsewhere(LocalProcesses):
    """An executor whose other machines cannot use the bucket."""

    def map(self, _work: Any, tasks: Sequence[Any], _progress: Progress) -> Any:
        yield tasks[0], StoreError("s3://a: the credentials have expired", StoreProblem.expired)


def test_a_task_that_cannot_use_the_bucket_ends_the_export_and_no_recording_is_left_out(s3, bags, spec):
    with pytest.raises(StoreError, match="the credentials have expired"):
        export(bags, spec, f"{s3.url}/out", NO_MEDIA, on_error="skip", executor=ExpiredElsewhere())


@pytest.mark.parametrize("during", [Converted, Merging])
def test_two_exports_of_one_plan_make_one_dataset(s3, bags, spec, local, during):
    inner: list[object] = []

    def start_another(event: Event) -> None:
        if isinstance(event, during) and not inner:
            inner.append(export(bags, spec, f"{s3.url}/out", NO_MEDIA))

    done = export(bags, spec, f"{s3.url}/out", NO_MEDIA, progress=start_another)
    assert "another export of the same recordings and options has completed the dataset" in done.notes
    assert complete(s3) == local()


@pytest.mark.parametrize("json_", [pytest.param(False, marks=pytest.mark.slow), True], ids=["text", "json"])
def test_the_command_that_finds_the_dataset_completed_by_another_one_ends_well(s3, bags, robocache, monkeypatch, json_):
    command = ["export", *bags, "-s", ROOT / "config" / "panda_lift.yaml", "--media", "none"]
    command += ["--out", f"{s3.url}/out", "--jobs", "1", *["--json"] * json_]
    runs: list[Any] = []

    class Another(progress.Lines):
        """Runs the same command to its end when the first recording is converted."""

        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if isinstance(event, Converted) and not runs:
                monkeypatch.setattr(progress, "Lines", Another.__base__)
                runs.append(robocache(*command))

    monkeypatch.setattr(progress, "Lines", Another)
    runs.append(robocache(*command))
    assert [run.code for run in runs] == [0, 0]
    if json_:
        assert [json.loads(run.out)["by_another"] for run in runs] == [False, True]
    else:
        note = "note another export of the same recordings and options has completed the dataset"
        assert runs[1].out.endswith(f"{note}\n{s3.url}/out: complete\n")
    assert "meta/info.json" in complete(s3)


def test_two_exports_that_replace_a_dataset_at_once_leave_the_new_one(s3, bags, spec, local, monkeypatch):
    url, delete = f"{s3.url}/out", ObjectStore.delete
    export(bags[:1], spec, url, NO_MEDIA)
    inner: list[object] = []

    def interrupted(store: ObjectStore, names: Iterable[str]) -> None:
        names = list(names)
        if "meta/info.json" in names and not inner:  # of the old dataset, as the first export believes
            inner.append(None)
            inner[0] = export(bags, spec, url, NO_MEDIA, overwrite=True)
        delete(store, names)

    monkeypatch.setattr(ObjectStore, "delete", interrupted)
    export(bags, spec, url, NO_MEDIA, overwrite=True)
    assert inner[0] is not None
    assert complete(s3) == local()


def test_an_export_of_another_plan_is_refused_in_one_line_and_does_not_disturb_the_first(s3, bags, spec, local):
    url, refused = f"{s3.url}/out", list[str]()

    def start_another(event: Event) -> None:
        if isinstance(event, Converted) and not refused:
            with pytest.raises(RoboCacheError) as error:
                export(bags[:1], spec, url, NO_MEDIA)
            refused.append(str(error.value))

    export(bags, spec, url, NO_MEDIA, progress=start_another)
    assert "an export of other recordings or options began " in refused[0]
    assert refused[0].endswith("; wait for it, or if it was killed, run robocache fleet gc --give-up on it")
    assert len(refused[0]) <= min(LINE_CHARACTERS, 199)
    assert objects(s3) == local()


def test_a_stopped_export_may_be_followed_by_another_plan(s3, bags, spec, local):
    stopped_export(bags[:1], spec, f"{s3.url}/out")
    export(bags, spec, f"{s3.url}/out", NO_MEDIA)
    assert objects(s3) == local()


def test_recordings_that_failed_are_not_tried_again(s3, bags, spec):
    options = DatasetOptions(media="none", min_frames=70)  # none of the recordings has as many in a row
    reported: list[str] = []
    for first in (True, False):
        tried: list[Event] = []
        with pytest.raises(RoboCacheError) as error:
            export(bags, spec, f"{s3.url}/out", options, progress=tried.append)
        reported.append(str(error.value))
        assert any(isinstance(event, Advanced) for event in tried) == first
    retry = "2 recordings failed in an earlier export; robocache fleet retry lets the next one try them"
    assert reported[1] == f"{reported[0]}\n{retry}"


def test_an_export_leaves_no_local_files(s3, bags, spec, tmp_path):
    export(bags[:1], spec, f"{s3.url}/out", NO_MEDIA)
    (left,) = (file for file in (tmp_path / "cache" / "robocache_ros").rglob("*") if file.is_file())
    assert (left.name, left.read_text()) == ("cache.lock", "0")


# Datasets in a bucket that are replaced, and exports that were killed while they put files.

OTHER = DatasetOptions(formats=("webdataset",), media="none")


class Killed(BaseException):
    """The process is gone."""


def put(target: BucketTarget, folder: Path, digest: str = "a", *, overwrite: bool = False) -> None:
    plan, _ = target.begin(digest, 1, overwrite=overwrite)
    target.publish(plan, folder, ["meta"])
    target.clear()


@pytest.fixture
def target(s3) -> BucketTarget:
    return BucketTarget(f"{s3.url}/out")


def test_overwrite_replaces_a_dataset_and_removes_its_other_files(s3, bags, spec, local):
    export(bags[:1], spec, f"{s3.url}/out", OTHER)
    s3.put("out/notes.txt", b"mine")
    export(bags, spec, f"{s3.url}/out", NO_MEDIA, overwrite=True)
    assert complete(s3) == {**local(), "notes.txt": b"mine"}


@pytest.mark.parametrize(
    ("name", "overwrite", "message"),
    [
        ("out/notes.txt", True, "not a dataset .*, so it is not overwritten; choose another folder"),
        ("out/meta/info.json", False, "out: exists; choose another folder, or replace it with --overwrite$"),
    ],
)
def test_what_is_not_a_dataset_or_not_to_be_replaced_stays(s3, bags, spec, name, overwrite, message):
    s3.put(name, b"mine")
    with pytest.raises(RoboCacheError, match=message):
        export(bags, spec, f"{s3.url}/out", NO_MEDIA, overwrite=overwrite)
    assert (s3.keys(""), s3.read(name)) == ([name], b"mine")


@pytest.mark.parametrize(
    "requests", [4, 10, *(pytest.param(number, marks=pytest.mark.slow) for number in (0, 2, 6, 8, 12, 14))]
)
def test_readers_never_find_half_a_dataset_wherever_an_export_is_killed(s3, target, tmp_path, monkeypatch, requests):
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


def test_the_old_dataset_is_there_until_all_of_the_new_one_is_in_the_bucket(s3, target, tmp_path, monkeypatch):
    old, put_file, uploaded = written(tmp_path / "old", "old"), ObjectStore.put_file, list[str]()
    put(target, old)

    def upload(store: ObjectStore, name: str, local: Path) -> None:
        assert objects(s3) == contents(old)
        put_file(store, name, local)
        uploaded.append(name)

    monkeypatch.setattr(ObjectStore, "put_file", upload)
    put(BucketTarget(target.store.url), written(tmp_path / "new", "new"), "b", overwrite=True)
    assert sorted(uploaded) == ["data/rows", "meta/info.json"]
    assert objects(s3) == contents(tmp_path / "new")


def test_files_of_a_stopped_export_are_removed_by_the_next_one(s3, target, tmp_path):
    plan, _ = target.begin("a", 1, overwrite=False)
    target.record_files(plan, {"videos/a": "1"})
    s3.put("out/videos/a", b"half")
    target.stop(plan)
    new = written(tmp_path / "new", "new")
    put(BucketTarget(target.store.url), new, "b")
    assert objects(s3) == contents(new)


def test_an_export_with_other_results_of_the_same_plan_is_refused(target, tmp_path):
    plan, _ = target.begin("a", 1, overwrite=False)
    target.record_files(plan, {"data/rows": "1"})
    with pytest.raises(RoboCacheError, match="another export of this plan has other results"):
        target.publish(plan, written(tmp_path, "new"), ["meta"])


def test_an_export_whose_place_is_taken_puts_nothing(s3, target, tmp_path):
    plan, _ = target.begin("a", 1, overwrite=False)
    target.stop(plan)
    BucketTarget(target.store.url).begin("b", 1, overwrite=False)
    with pytest.raises(RoboCacheError, match="another export has taken the place of this one"):
        target.publish(plan, written(tmp_path, "new"), ["meta"])
    assert objects(s3) == {}


def test_a_dataset_that_is_completed_while_another_export_begins_is_not_replaced(s3, target, tmp_path, monkeypatch):
    folder, seen, calls = written(tmp_path, "first"), BucketTarget.current, []
    plan, _ = target.begin("a", 1, overwrite=False)
    target.record_files(plan, {name: sha256(folder / name) for name in contents(folder)})

    def current(other: BucketTarget) -> TargetPlan | None:
        found = seen(other)
        if not calls:  # the other export was in progress
            calls.append(None)
            target.publish(plan, folder, ["meta"])
            target.clear()
        return found

    other = BucketTarget(target.store.url)
    with monkeypatch.context() as patch:
        patch.setattr(BucketTarget, "current", current)
        with pytest.raises(RoboCacheError, match="exists; choose another folder, or replace it with --overwrite"):
            other.begin("b", 1, overwrite=False)
    assert complete(s3) == contents(folder)
