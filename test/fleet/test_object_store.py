"""Objects of a bucket, also while requests fail."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from robocache_ros.storage.errors import StoreError, StoreProblem
from robocache_ros.storage.object_store import ObjectStore


@pytest.fixture
def store(s3) -> ObjectStore:
    return ObjectStore(f"{s3.url}/out", s3.options)


@pytest.fixture
def faulty(faulty_s3, monkeypatch) -> ObjectStore:
    """A store whose requests go through the proxy; botocore does not repeat them."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    return ObjectStore(f"{faulty_s3.url}/out", faulty_s3.options)


EXPIRED = "the credentials have expired; renew them and run the same command again"


def test_a_listing_has_all_objects_below_a_folder(store):
    assert (store.listed("a/"), store.entries()) == ({}, [])
    for name in ("a/1", "a/b/2", "c/3", "pieces/0a/1", "pieces/fe/2", "pieces/7b/3"):
        store.put(name, b"xy")
    assert {name: listed.size for name, listed in store.listed("a/").items()} == {"1": 2, "b/2": 2}
    assert store.entries() == ["a", "c", "pieces"]
    assert list(store.listed("pieces/", hexadecimal=True)) == ["0a/1", "7b/3", "fe/2"]  # by sixteen requests


def test_deleted_objects_are_gone_and_those_that_are_not_there_are_left_out(store):
    store.put("a", b"")
    store.delete(["a", "b"])
    assert store.listed() == {}
    with pytest.raises(FileNotFoundError):
        store.get("a")


def test_one_of_many_writers_at_once_creates_an_object_and_later_ones_do_not(store):
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda n: store.create("a", b"%d" % n), range(8)))
    assert sum(created) == 1
    assert store.create("a", b"other") is False
    assert store.get("a") == b"%d" % created.index(True)


def test_a_put_whose_answer_was_lost_is_not_lost_and_objects_in_memory_are_put_if_absent_too(monkeypatch):
    put, answers = MemoryFileSystem.pipe_file, [ConnectionResetError("the answer to the first request is lost")]

    def pipe_file(*arguments: Any, **given: Any) -> None:
        put(*arguments, **given)
        if answers:
            raise answers.pop()

    store = ObjectStore("memory://lost/out")
    store.check()
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
    assert [store.create("a", b"1"), store.create("a", b"other")] == [True, False]
    assert not answers
    store.delete(["a"])
    assert store.listed() == {}


@pytest.mark.parametrize(
    "kind", ["503", "cut", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("500", "slow", "reset"))]
)
def test_requests_that_fail_are_sent_again(faulty, faults, kind):
    faults.share, faults.kinds = 0.1, (kind,)
    names = [f"a{n}" for n in range(10)]
    for name in names:
        faulty.put(name, name.encode())
    assert sorted(faulty.listed()) == names
    assert [faulty.get(name) for name in names] == [name.encode() for name in names]
    faulty.delete(names)
    assert faulty.listed() == {}


@pytest.mark.parametrize(
    ("url", "fault", "ask", "message", "problem"),
    [
        ("", "deny_writes", ObjectStore.check, "no permission to write; check the credentials", "denied"),
        ("", "expired", lambda store: store.get("a"), EXPIRED, "expired"),
        ("", "expired", lambda store: store.put("a", b""), EXPIRED, "expired"),
        ("", "expired", ObjectStore.listed, EXPIRED, "expired"),
        ("s3://not-there-at-all/out", "", ObjectStore.check, "no such bucket; create it, or correct the URL", ""),
    ],
)
def test_a_bucket_that_cannot_be_used_is_named_also_to_another_process(
    faulty, faults, url, fault, ask, message, problem
):
    if fault:
        setattr(faults, fault, True)
    with pytest.raises(StoreError, match=message) as error:
        ask(ObjectStore(url, faulty.options) if url else faulty)
    sent = pickle.loads(pickle.dumps(error.value))
    assert str(sent) == str(error.value)
    assert not problem or sent.problem is StoreProblem[problem]
