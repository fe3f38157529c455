"""Recordings at URLs are those of the local files, and only what is needed of them is downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from robocache_ros.bags.describe import describe
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.storage import mcap
from robocache_ros.bags.write import write_bag
from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage import object_store
from test.export.conftest import dry_run
from test.fleet.fault_proxy import Faults
from test.fleet.s3_server import Bucket
from test.ros1_bags import write_ros1_bag

TYPES = {"/joints": "std_msgs/msg/Float64MultiArray", "/blob": "std_msgs/msg/UInt8MultiArray"}
SPEC = {
    "robocache": 1,
    "rate_hz": 50,
    "actions": "none",
    "streams": {"joints": {"topic": "/joints", "type": TYPES["/joints"], "dim": 2, "align": "hold", "max_age_ms": 100}},
}
START_NS = 1_700_000_000 * 10**9


def messages(seconds: float = 1.0, blob: int = 1000) -> Iterator[tuple[str, int, bytes]]:
    """Numbers at 100 Hz, and bytes that do not compress at 10 Hz."""
    noise = np.random.default_rng(0)
    head = b"\0\1\0\0" + bytes(8)  # CDR, no dimensions, no offset
    for number in range(int(seconds * 100)):
        log_ns = START_NS + number * 10_000_000
        values = np.array([number, -number], "<f8").tobytes()
        yield "/joints", log_ns, head + (2).to_bytes(4, "little") + bytes(4) + values
        if number % 10 == 0:
            yield "/blob", log_ns, head + blob.to_bytes(4, "little") + noise.bytes(blob)


@pytest.fixture
def spec() -> FusionSpec:
    return load_spec(SPEC)


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Path]:
    """A recording by its kind."""

    def make(kind: str) -> Path:
        if kind == "ros1":
            return write_ros1_bag(tmp_path / "run.bag", TYPES, messages())
        compression = kind if kind in ("file", "message", "storage") else "none"
        storage = "sqlite3" if kind == "sqlite3" else "mcap"
        return write_bag(tmp_path / "run", TYPES, messages(), storage=storage, compression=compression)

    return make


def contents(folder: Path) -> dict[str, str]:
    """The checksums of the files of a dataset that do not name the path of the recording."""
    files = (file for file in folder.rglob("*") if file.suffix == ".parquet")
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("kind", ["mcap", "storage", "message", "file", "sqlite3", "ros1"])
def test_every_kind_of_recording_is_read_at_a_url(kind: str, recorded: Callable[[str], Path], s3: Bucket) -> None:
    local = recorded(kind)
    url = s3.put(f"raw/{local.name}", local)

    with Bag(url) as remote, Bag(local) as bag:
        assert list(remote.messages()) == list(bag.messages())
        assert remote.notes == bag.notes


@pytest.mark.parametrize("kind", ["mcap", *(pytest.param(k, marks=pytest.mark.slow) for k in ("sqlite3", "ros1"))])
def test_an_export_of_a_url_has_the_frames_of_the_local_one(
    kind: str, recorded: Callable[[str], Path], spec: FusionSpec, s3: Bucket, tmp_path: Path
) -> None:
    local = recorded(kind)
    url = s3.put(f"raw/{local.name}", local)

    export([url], spec, tmp_path / "remote")

    export([local], spec, tmp_path / "local")
    assert contents(tmp_path / "remote") == contents(tmp_path / "local")
    reported = (tmp_path / "remote" / "meta" / "robocache.json").read_text()
    (file,) = [local] if local.is_file() else [file for file in local.iterdir() if file.suffix != ".yaml"]
    assert f'"{url}"' in reported
    assert hashlib.sha256(file.read_bytes()).hexdigest() in reported


def test_the_configuration_of_fsspec_names_the_server(
    recorded: Callable[[str], Path], s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.put("raw/run", recorded("mcap"))
    for name in s3.env:
        monkeypatch.delenv(name)
    monkeypatch.setitem(fsspec.config.conf, "s3", s3.options)

    with Bag(url) as bag:
        assert bag.topics.keys() == TYPES.keys()


def test_a_recording_that_was_replaced_is_read_again(
    recorded: Callable[[str], Path], spec: FusionSpec, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "FRESH_S", 0.0)
    url = s3.put("run.mcap", recorded("mcap") / "run.mcap")
    export([url], spec, tmp_path / "first", pieces=tmp_path / "pieces")
    longer = write_bag(tmp_path / "longer", TYPES, messages(2.0)) / "longer.mcap"
    s3.put("run.mcap", longer)

    again = export([url], spec, tmp_path / "again", pieces=tmp_path / "pieces")

    assert again.frames == export([longer], spec, tmp_path / "local").frames


def test_an_export_downloads_each_byte_once(
    recorded: Callable[[str], Path], spec: FusionSpec, faulty_s3: Bucket, faults: Faults, tmp_path: Path
) -> None:
    local = recorded("sqlite3") / "run.db3"
    url = faulty_s3.put("raw/run.db3", local)

    export([url], spec, tmp_path / "out")

    sent = sum(request.sent for request in faults.requests if request.path.endswith("run.db3"))
    assert sent == local.stat().st_size


def test_an_export_of_a_recording_that_was_converted_downloads_nothing(
    recorded: Callable[[str], Path], spec: FusionSpec, faulty_s3: Bucket, faults: Faults, tmp_path: Path
) -> None:
    url = faulty_s3.put("raw/run.db3", recorded("sqlite3") / "run.db3")
    export([url], spec, tmp_path / "first", pieces=tmp_path / "pieces")
    faults.restart()

    export([url], spec, tmp_path / "second", DatasetOptions(formats=("webdataset",)), pieces=tmp_path / "pieces")

    assert [request.method for request in faults.requests if request.range] == []


def test_a_dry_run_finds_the_pieces_of_a_url(
    recorded: Callable[[str], Path], spec: FusionSpec, s3: Bucket, tmp_path: Path
) -> None:
    url, pieces = s3.put("raw/run.db3", recorded("sqlite3") / "run.db3"), tmp_path / "pieces"
    export([url], spec, tmp_path / "first", pieces=pieces)

    run = dry_run([url], spec, tmp_path / "second", pieces=pieces)

    assert [str(recording.path) for recording in run.converted] == [url]


def test_info_reads_the_index_and_a_few_chunks(
    faulty_s3: Bucket, faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcap, "MAX_SAMPLED", 400_000)
    local = write_bag(tmp_path / "run", TYPES, messages(300, 5000)) / "run.mcap"
    url = faulty_s3.put("raw/run.mcap", local)

    info = describe(url)

    assert sum(request.sent for request in faults.requests) < 0.1 * local.stat().st_size
    assert info.is_sampled
    assert {name: topic.stats.count for name, topic in info.topics.items()} == {"/joints": 30_000, "/blob": 3_000}
    assert info.topics["/joints"].stats.rate_hz == pytest.approx(100, rel=0.01)  # from the times of chunks
    assert info.topics["/joints"].content == "2 values"


def test_info_on_a_small_recording_reads_all_of_it(recorded: Callable[[str], Path], s3: Bucket) -> None:
    local = recorded("mcap")

    found = describe(s3.put("raw/run", local))

    assert repr(found.topics) == repr(describe(local).topics)
    assert not found.is_sampled
