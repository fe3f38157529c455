"""Recordings at URLs of other file systems than S3."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest

from robocache_ros.bags.describe import describe
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.exporter.job import export
from robocache_ros.spec import load_spec
from test.fleet.test_remote_recordings import SPEC, TYPES, contents, messages


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


class _WithRanges(_Quiet):
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
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An mcap file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_bag(tmp_path / "run", TYPES, messages()) / "run.mcap"


@pytest.fixture
def url_of(recorded: Path) -> Iterator[Callable[[str], str]]:
    """The URL of the file in a kind of file system."""
    servers: list[ThreadingHTTPServer] = []

    def make(kind: str) -> str:
        if kind == "memory":
            fsspec.filesystem("memory").put(str(recorded), "/raw/run.mcap")
            return "memory://raw/run.mcap"
        if kind == "file":
            return f"file://{recorded}"
        handler = partial(_WithRanges if kind == "http with ranges" else _Quiet, directory=str(recorded.parent))
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[0].serve_forever, args=(0.05,)).start()
        return f"http://127.0.0.1:{servers[0].server_port}/run.mcap"

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()
    fsspec.filesystem("memory").rm("/", recursive=True)


@pytest.mark.parametrize("kind", ["memory", "file", "http", "http with ranges"])
def test_a_recording_is_read_from_every_file_system(
    kind: str, url_of: Callable[[str], str], recorded: Path, tmp_path: Path
) -> None:
    url = url_of(kind)

    with Bag(url) as remote, Bag(recorded) as local:
        assert list(remote.messages()) == list(local.messages())
    assert describe(url).topics.keys() == TYPES.keys()
    export([url], load_spec(SPEC), tmp_path / "remote")
    export([recorded], load_spec(SPEC), tmp_path / "local")
    assert contents(tmp_path / "remote") == contents(tmp_path / "local")
