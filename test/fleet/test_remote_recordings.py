"""Recordings at URLs: found, read and converted as local ones, by few requests, also while a server fails."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import yaml

from robocache_ros.bags.describe import describe
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.storage import mcap
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.progress import Converted
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage import object_store, paths
from robocache_ros.storage.cache import VARIABLE, cache_folder
from test.export.conftest import contents, dry_run
from test.exporting import export
from test.fuzz.messages import numbers, serialize
from test.ros1_bags import write_ros1_bag
from test.shared import FolderRequests, served

TYPES = {"/joints": "std_msgs/msg/Float64MultiArray", "/blob": "std_msgs/msg/UInt8MultiArray"}
JOINTS = {"topic": "/joints", "type": TYPES["/joints"], "dim": 2, "align": "hold", "max_age_ms": 100}
RAW = {"robocache": 1, "rate_hz": 50, "actions": "none", "streams": {"joints": JOINTS}}
SPEC = load_spec(RAW)
START_NS = 1_700_000_000 * 10**9


def messages(seconds: float = 1.0, blob: int = 1000) -> Iterator[tuple[str, int, bytes]]:
    """Numbers at 100 Hz, and bytes that do not compress at 10 Hz."""
    noise = np.random.default_rng(0)
    for number in range(int(seconds * 100)):
        log_ns = START_NS + number * 10_000_000
        yield "/joints", log_ns, numbers(number, -number)
        if number % 10 == 0:
            yield "/blob", log_ns, serialize(TYPES["/blob"], {"data": noise.bytes(blob)})


@pytest.fixture
def recorded(tmp_path) -> Callable[[str], Path]:
    """A recording by its kind."""

    def make(kind: str) -> Path:
        if kind == "ros1":
            return write_ros1_bag(tmp_path / "run.bag", TYPES, messages())
        compression = kind if kind in ("file", "message", "storage") else "none"
        storage = "sqlite3" if kind == "sqlite3" else "mcap"
        return write_bag(tmp_path / "run", TYPES, messages(), storage=storage, compression=compression)

    return make


def parquet_files(folder: Path) -> dict[str, bytes]:
    """The files of a dataset that do not name the paths of its recordings."""
    return {name: data for name, data in contents(folder).items() if name.endswith(".parquet")}


def exported(recordings: Sequence[str | Path], out: Path) -> dict[str, bytes]:
    return parquet_files(export(recordings, SPEC, out).out)


@pytest.mark.parametrize("kind", ["mcap", "storage", "message", "file", "sqlite3", "ros1"])
def test_every_kind_of_recording_is_read_at_a_url(kind, recorded, s3, monkeypatch):
    local = recorded(kind)
    url = s3.put(f"raw/{local.name}", local)
    if kind == "mcap":  # whose server the configuration of fsspec names
        for name in s3.env:
            monkeypatch.delenv(name)
        monkeypatch.setitem(fsspec.config.conf, "s3", s3.options)
    with Bag(url) as remote, Bag(local) as bag:
        assert list(remote.messages()) == list(bag.messages())
        assert remote.notes == bag.notes
    found = describe(url)
    assert repr(found.topics) == repr(describe(local).topics)
    assert not found.is_sampled


@pytest.mark.parametrize("kind", ["mcap", *(pytest.param(k, marks=pytest.mark.slow) for k in ("sqlite3", "ros1"))])
def test_an_export_of_a_url_has_the_frames_of_the_local_one(kind, recorded, s3, tmp_path):
    local = recorded(kind)
    url = s3.put(f"raw/{local.name}", local)
    assert exported([url], tmp_path / "remote") == exported([local], tmp_path / "local")
    (reported,) = json.loads((tmp_path / "remote" / "meta" / "robocache.json").read_text())["recordings"]
    (file,) = [local] if local.is_file() else [file for file in local.iterdir() if file.suffix != ".yaml"]
    assert reported["bag"] == url
    assert [each["sha256"] for each in reported["files"]] == [hashlib.sha256(file.read_bytes()).hexdigest()]


def test_a_recording_that_was_replaced_is_read_again(recorded, s3, tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "FRESH_S", 0.0)
    url = s3.put("run.mcap", recorded("mcap") / "run.mcap")
    export([url], SPEC, tmp_path / "first", pieces=tmp_path / "pieces")
    longer = write_bag(tmp_path / "longer", TYPES, messages(2.0)) / "longer.mcap"
    s3.put("run.mcap", longer)
    again = export([url], SPEC, tmp_path / "again", pieces=tmp_path / "pieces")
    assert again.frames == export([longer], SPEC, tmp_path / "local").frames


def test_an_export_downloads_each_byte_once(recorded, faulty_s3, faults, tmp_path):
    local = recorded("sqlite3") / "run.db3"
    url = faulty_s3.put("raw/run.db3", local)
    export([url], SPEC, tmp_path / "out")
    sent = sum(request.sent for request in faults.requests if request.path.endswith("run.db3"))
    assert sent == local.stat().st_size


def test_an_export_of_a_recording_that_was_converted_downloads_nothing(recorded, faulty_s3, faults, tmp_path):
    url, pieces = faulty_s3.put("raw/run.db3", recorded("sqlite3") / "run.db3"), tmp_path / "pieces"
    export([url], SPEC, tmp_path / "first", pieces=pieces)
    faults.restart()
    run = dry_run([url], SPEC, tmp_path / "second", pieces=pieces)
    assert [str(recording.path) for recording in run.converted] == [url]
    export([url], SPEC, tmp_path / "second", DatasetOptions(formats=("webdataset",)), pieces=pieces)
    assert [request.method for request in faults.requests if request.range] == []


def test_info_reads_the_index_and_a_few_chunks(faulty_s3, faults, tmp_path, monkeypatch):
    monkeypatch.setattr(mcap, "MAX_SAMPLED", 400_000)
    local = write_bag(tmp_path / "run", TYPES, messages(300, 5000)) / "run.mcap"
    url = faulty_s3.put("raw/run.mcap", local)
    info = describe(url)
    assert sum(request.sent for request in faults.requests) < 0.1 * local.stat().st_size
    assert info.is_sampled
    assert {name: topic.stats.count for name, topic in info.topics.items()} == {"/joints": 30_000, "/blob": 3_000}
    assert info.topics["/joints"].stats.rate_hz == pytest.approx(100, rel=0.01)  # from the times of chunks
    assert info.topics["/joints"].content == "2 values"


# Recordings at URLs of other file systems than S3.


class WithRanges(FolderRequests):
    """Answers requests for a part of a file."""

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        if not wanted:
            super().do_GET()
            return
        first, last = wanted.removeprefix("bytes=").split("-")
        data = Path(self.translate_path(self.path)).read_bytes()
        part = data[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


@pytest.fixture
def mcap_file(tmp_path, monkeypatch) -> Path:
    """An mcap file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_bag(tmp_path / "run", TYPES, messages()) / "run.mcap"


@pytest.fixture
def url_of(mcap_file) -> Iterator[Callable[[str], str]]:
    """The URL of the file in a kind of file system."""
    with ExitStack() as servers:

        def make(kind: str) -> str:
            if kind == "memory":
                fsspec.filesystem("memory").put(str(mcap_file), "/raw/run.mcap")
                return "memory://raw/run.mcap"
            if kind == "file":
                return f"file://{mcap_file}"
            handler = WithRanges if kind == "http with ranges" else FolderRequests
            return servers.enter_context(served(mcap_file.parent, handler)) + "/run.mcap"

        yield make
    fsspec.filesystem("memory").rm("/", recursive=True)


@pytest.mark.parametrize("kind", ["memory", "file", "http", "http with ranges"])
def test_a_recording_is_read_from_every_file_system(kind, url_of, mcap_file, tmp_path):
    url = url_of(kind)
    with Bag(url) as remote, Bag(mcap_file) as local:
        assert list(remote.messages()) == list(local.messages())
    assert describe(url).topics.keys() == TYPES.keys()
    assert exported([url], tmp_path / "remote") == exported([mcap_file], tmp_path / "local")


# Recordings at URLs whose server fails: what passes is waited for, everything else is one line with the way out.


@pytest.fixture
def three(tmp_path) -> list[Path]:
    """Three recordings."""
    return [write_bag(tmp_path / f"run_{n}", TYPES, messages(1.0, 50_000)) / f"run_{n}.mcap" for n in range(3)]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_export_completes_while_requests_fail(seed, three, faulty_s3, faults, tmp_path):
    urls = [faulty_s3.put(f"raw/{path.name}", path) for path in three]
    faults.share, faults.seed = 0.2, seed
    assert exported(urls, tmp_path / "remote") == exported(three, tmp_path / "local")
    assert any(request.status in (0, 500, 503) for request in faults.requests)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("deny_reads", "no permission to read; check the credentials and the permissions on the bucket"),
        ("expired", "the credentials have expired; renew them and run the same command again"),
    ],
)
def test_a_recording_that_may_not_be_read_is_named(fault, said, faulty_s3, faults, three, tmp_path):
    url = faulty_s3.put("a.mcap", three[0])
    setattr(faults, fault, True)
    with pytest.raises(RoboCacheError) as raised:
        export([url], SPEC, tmp_path / "refused")
    assert str(raised.value) == f"{url}: {said}"
    assert len(str(raised.value)) < 200


def test_credentials_that_expire_in_between_end_the_export_which_is_continued(three, faulty_s3, faults, tmp_path):
    urls = [faulty_s3.put(f"raw/{path.name}", path) for path in three]

    def expire(event: object) -> None:
        faults.expired = faults.expired or isinstance(event, Converted)

    with pytest.raises(RoboCacheError, match=r"run_1\.mcap: the credentials have expired") as raised:
        export(urls, SPEC, tmp_path / "remote", progress=expire)
    faults.expired = False
    again = export(urls, SPEC, tmp_path / "remote")
    assert len(str(raised.value).splitlines()) == 1
    assert "1 of 3 recordings were converted by an earlier export and reused" in again.notes
    assert parquet_files(again.out) == exported(three, tmp_path / "local")


def test_a_recording_that_is_replaced_meanwhile_is_not_used(three, s3, tmp_path, monkeypatch):
    url, whole = s3.put("a.mcap", three[0]), paths.part_of

    def replaced(*given: Any) -> bytes:
        data = whole(*given)
        s3.put("a.mcap", three[1])
        return data

    monkeypatch.setattr(paths, "part_of", replaced)
    with pytest.raises(RoboCacheError, match=r"a\.mcap: changed while it was downloaded; try again"):
        export([url], SPEC, tmp_path / "out")
    assert not (tmp_path / "out" / "meta").exists()


# The commands take URLs of recordings, specs and manifests.


@pytest.fixture(scope="module")
def filled(s3_of_file, tmp_path_factory) -> str:
    """The URL of a bucket with two recordings, a spec and a manifest."""
    for name in ("lift_1", "lift_2"):
        s3_of_file.put(f"raw/{name}", write_bag(tmp_path_factory.mktemp("bags") / name, TYPES, messages()))
    s3_of_file.put("specs/arm.yaml", yaml.safe_dump(RAW).encode())
    s3_of_file.put("raw/some.csv", b"recording,task\nlift_2,push\n")
    return s3_of_file.url


@pytest.fixture
def raw(filled, tmp_path, monkeypatch) -> str:
    """The same, of which nothing has been downloaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return filled


def test_info_describes_a_url_and_lists_the_recordings_of_a_glob(raw, robocache):
    one, every = (robocache("info", f"{raw}/{place}", "--json") for place in ("raw/lift_1", "**"))
    assert (one.code, every.code) == (0, 0)
    (found,) = json.loads(one.out)["recordings"]
    assert found["path"] == f"{raw}/raw/lift_1"
    assert [topic["messages"] for topic in found["topics"]] == [10, 100]
    assert [each["path"] for each in json.loads(every.out)["recordings"]] == [f"{raw}/raw/lift_{n}" for n in (1, 2)]


EXPORT = "export --spec {raw}/specs/arm.yaml --manifest {raw}/raw/some.csv --out {out} --jobs 1"


@pytest.mark.parametrize(
    ("command", "reported", "text"),
    [
        ("info {raw}/raw/lift_1 --write-spec {out}", "", "topic: /joints"),
        ("report {raw}/raw/lift_1 --spec {raw}/specs/arm.yaml --out {out}", "", "lift_1"),
        (EXPORT, "meta/robocache.json", "{raw}/raw/lift_2"),
    ],
)
def test_commands_take_urls(raw, tmp_path, robocache, command, reported, text):
    out = tmp_path / "out.html"
    assert robocache(*command.format(raw=raw, out=out).split()).code == 0
    assert text.format(raw=raw) in (out / reported).read_text()


def test_check_compares_urls(raw, robocache):
    done = robocache("check", f"{raw}/specs/arm.yaml", f"{raw}/raw/", "--json")
    assert (done.code, len(json.loads(done.out)["recordings"])) == (0, 2)


@pytest.mark.parametrize(("size", "kept"), [("1GB", 2), ("0", 1)])
def test_export_keeps_as_many_recordings_as_its_cache_holds(size, kept, raw, tmp_path, robocache, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")  # which the command sets for its processes
    arguments = ("--spec", f"{raw}/specs/arm.yaml", "--task", "lift", "--out", tmp_path / "out", "--jobs", "1")
    assert robocache("export", f"{raw}/**", *arguments, "--cache-bytes", size).code == 0
    assert len(list(cache_folder("recordings").glob("*.mcap"))) == kept


def test_a_url_that_is_too_long_is_refused():
    with pytest.raises(RoboCacheError, match=r"^memory://x{10}…x{19}: 5,009 characters, not a path"):
        Bag(f"memory://{'x' * 5000}")


def test_a_spec_that_is_not_there_is_one_line(raw, robocache):
    done = robocache("check", f"{raw}/specs/none.yaml")
    (line,) = done.err.splitlines()
    assert done.code == 2
    assert f"{raw}/specs/none.yaml: cannot be read (not there)" in line


@pytest.mark.parametrize("text", ["s3:/robot-data/lift", "s3:robot-data/lift"])
def test_a_url_without_two_slashes_is_not_taken_for_a_folder(text, robocache):
    done = robocache("export", "raw/lift", "--spec", "arm.yaml", "--out", text, "--json")
    (line,) = json.loads(done.out)["errors"]
    assert done.code == 2
    assert line.endswith(f"{text} is not a URL; write s3://robot-data/lift")
