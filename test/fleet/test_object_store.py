"""Objects of a bucket, also while requests fail."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from robocache_ros.storage.errors import StoreError, StoreProblem
from robocache_ros.storage.object_store import ObjectStore
from test.fleet.s3 import Bucket, Faults


@pytest.fixture
def store(s3: Bucket) -> ObjectStore:
    return ObjectStore(f"{s3.url}/out", s3.options)


@pytest.fixture
def faulty(faulty_s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A store whose requests go through the proxy; botocore does not repeat them."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    return ObjectStore(f"{faulty_s3.url}/out", faulty_s3.options)


def test_a_listing_has_all_objects_below_a_folder(store: ObjectStore) -> None:
    for name in ("a/1", "a/b/2", "c/3"):
        store.put(name, b"xy")
    assert {name: listed.size for name, listed in store.listed("a/").items()} == {"1": 2, "b/2": 2}
    assert store.entries() == ["a", "c"]


def test_sixteen_listings_find_what_one_finds(store: ObjectStore) -> None:
    for name in ("0a/1", "fe/2", "7b/3"):
        store.put(f"pieces/{name}", b"")
    assert list(store.listed("pieces/", hexadecimal=True)) == ["0a/1", "7b/3", "fe/2"]


def test_nothing_is_listed_where_nothing_is(store: ObjectStore) -> None:
    assert store.listed("a/") == {}
    assert store.entries() == []


def test_deleted_objects_are_gone_and_those_that_are_not_there_are_left_out(store: ObjectStore) -> None:
    store.put("a", b"")
    store.delete(["a", "b"])
    assert store.listed() == {}
    with pytest.raises(FileNotFoundError):
        store.get("a")


def test_the_first_of_two_writers_creates_an_object(store: ObjectStore) -> None:
    assert [store.create("a", b"1"), store.create("a", b"2")] == [True, False]
    assert store.get("a") == b"1"


def test_one_of_many_writers_at_once_creates_an_object(store: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda n: store.create("a", b"%d" % n), range(8)))
    assert sum(created) == 1
    assert store.get("a") == b"%d" % created.index(True)


def test_a_put_whose_answer_was_lost_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    put, answers = MemoryFileSystem.pipe_file, [ConnectionResetError("the answer to the first request is lost")]

    def pipe_file(*arguments: Any, **given: Any) -> None:
        put(*arguments, **given)
        if answers:
            raise answers.pop()

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
    store = ObjectStore("memory://lost/out")
    assert [store.create("a", b"1"), store.create("a", b"other")] == [True, False]
    assert not answers


@pytest.mark.parametrize(
    "kind", ["503", "cut", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("500", "slow", "reset"))]
)
def test_requests_that_fail_are_sent_again(faulty: ObjectStore, faults: Faults, kind: str) -> None:
    faults.share, faults.kinds = 0.1, (kind,)
    names = [f"a{n}" for n in range(10)]
    for name in names:
        faulty.put(name, name.encode())
    assert sorted(faulty.listed()) == names
    assert [faulty.get(name) for name in names] == [name.encode() for name in names]
    faulty.delete(names)
    assert faulty.listed() == {}


def test_a_bucket_that_cannot_be_written_is_refused(faulty: ObjectStore, faults: Faults) -> None:
    faults.deny_writes = True
    with pytest.raises(StoreError, match="no permission to write; check the credentials and the permissions") as error:
        faulty.check()
    assert error.value.problem is StoreProblem.denied


def test_expired_credentials_are_named(faulty: ObjectStore, faults: Faults) -> None:
    faults.expired = True
    for ask in (lambda: faulty.get("a"), lambda: faulty.put("a", b""), lambda: faulty.listed()):
        with pytest.raises(StoreError, match="the credentials have expired; renew them and run the same command again"):
            ask()


def test_a_bucket_that_does_not_exist_is_named(s3: Bucket) -> None:
    store = ObjectStore("s3://not-there-at-all/out", s3.options)
    with pytest.raises(StoreError, match="no such bucket; create it, or correct the URL"):
        store.check()


def test_an_error_may_be_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(StoreError("a: b; c", StoreProblem.expired)))
    assert (str(error), error.problem) == ("a: b; c", StoreProblem.expired)


def test_objects_in_memory_are_put_if_absent_too() -> None:
    store = ObjectStore("memory://object-store-test/out")
    store.check()
    assert [store.create("a", b"1"), store.create("a", b"2")] == [True, False]
    store.delete(["a"])
    assert store.listed() == {}
