"""An S3 server on this machine, a bucket for each test, and a proxy that adds faults, which s3.py lists.

    def test_a(s3: Bucket) -> None:                     # moto's server; the bucket is empty and of this test
        export([s3.put("raw/a.mcap", path)], spec, f"{s3.url}/out")

    def test_b(faulty_s3: Bucket, faults: Faults) -> None:   # the same bucket through the proxy
        faults.share, faults.kinds = 0.1, ("500", "503", "slow", "reset", "cut")
        assert sum(r.sent for r in faults.requests) < ...    # every request is noted, with its bytes
        faulty_s3.read("out/meta/info.json")             # put, read and keys go to the server, past the proxy

The environment of the test (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …) names the server, or with `faulty_s3` the proxy:
plain URLs work, also in processes that the test starts. Where options are needed, `s3.options` has them for s3fs, and
`s3.env` for another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import fsspec
import pytest

from robocache_ros.exporter.progress import Converted, Event
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import Contents, bags, contents, spec  # noqa: F401 - fixtures
from test.exporting import export
from test.fleet.s3 import Bucket, FaultProxy, Faults, environment, running_server
from test.shared import folder_of_run


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory) -> Iterator[str]:
    """The URL of an S3 server, in a process of its own: one for all processes of this run."""
    with running_server(folder_of_run(tmp_path_factory)) as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_server, monkeypatch, tmp_path) -> Iterator[Bucket]:
    """An empty bucket."""
    yield from _bucket(s3_server, monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def s3_of_file(s3_server, tmp_path_factory) -> Iterator[Bucket]:
    """A bucket of the tests of one file, which they only read."""
    with pytest.MonkeyPatch.context() as patch:
        yield from _bucket(s3_server, patch, tmp_path_factory.mktemp("s3"))


@pytest.fixture
def faults(s3_server) -> Iterator[Faults]:
    """The faults of the proxy that `faulty_s3` goes through; none at first."""
    with FaultProxy(s3_server) as proxy:
        yield proxy.faults


@pytest.fixture
def faulty_s3(s3, faults, monkeypatch) -> Iterator[Bucket]:
    """The bucket `s3` through the proxy."""
    _use(faults.endpoint, monkeypatch)
    _forget()
    yield replace(s3, endpoint=faults.endpoint)
    _forget()


def _bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Bucket]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # of what is downloaded
    _use(endpoint, monkeypatch)
    bucket = Bucket.created(endpoint)
    yield bucket
    bucket.remove()


def _use(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(endpoint).items():
        monkeypatch.setenv(name, value)


def _forget() -> None:
    """Forget connections of file systems: they are kept by their options, and not by the environment."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


# Two short recordings and their local export, to compare with exports to a bucket.

NO_MEDIA = DatasetOptions(media="none")


def objects(bucket: Bucket, prefix: str = "out/") -> Contents:
    """Every object of a dataset in a bucket, without the records of its export."""
    names = (key[len(prefix) :] for key in bucket.keys(prefix))
    return {name: bucket.read(prefix + name) for name in names if not name.startswith(".robocache/")}


def hidden(bucket: Bucket, prefix: str = "out/") -> list[str]:
    """The names of the records and the pieces of exports to a target."""
    return [key[len(prefix) :] for key in bucket.keys(prefix) if key.startswith(f"{prefix}.robocache/")]


def complete(bucket: Bucket) -> Contents:
    """The objects of a dataset, of whose export nothing is left but the record of its end."""
    assert hidden(bucket) == [".robocache/complete.json"]
    return objects(bucket)


def stopped_export(bags: Sequence[str | Path], spec: FusionSpec, out: str | Path, **given: Any) -> None:  # noqa: F811
    """An export that is stopped when the first recording is converted."""

    def stop(event: Event) -> None:
        if isinstance(event, Converted):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(bags, spec, out, progress=stop, **{"options": NO_MEDIA, **given})


@pytest.fixture(scope="session")
def local(bags, spec, tmp_path_factory) -> Callable[..., Contents]:  # noqa: F811
    """The files of a local export, by its options."""

    @cache
    def make(options: DatasetOptions = NO_MEDIA) -> Contents:
        return contents(export(bags, spec, tmp_path_factory.mktemp("local") / "out", options).out)

    return make
