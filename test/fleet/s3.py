"""moto's S3 server in a process of its own, buckets on it, and a proxy that answers some requests with a fault."""

from __future__ import annotations

import http.client
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from test.shared import locked

_SERVER = """
import contextlib, logging, sys, threading
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
WSGIRequestHandler.protocol_version = "HTTP/1.1"  # connections are kept
moto = create_backend_app("s3")  # alone: choosing the service takes a third of the time of a request
one_at_a_time = threading.Lock()
def application(environ, start_response):
    # Of several puts with a condition at once, S3 accepts one. moto looks whether an object is there, and then puts it.
    other = environ["REQUEST_METHOD"] in ("GET", "HEAD") or "HTTP_IF_NONE_MATCH" not in environ
    with contextlib.nullcontext() if other else one_at_a_time:
        return moto(environ, start_response)
server = make_server("127.0.0.1", 0, application, threaded=True)
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()  # ends with the tests, however they end
"""


@contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """The URL of a server that runs as long as the context of any process that gave the same folder."""
    users = folder / "s3.users"  # a pipe, which the server reads until no process has it open any more
    with locked(folder / "s3.lock"):
        try:
            user = os.open(users, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # there is no pipe, or no server reads it
            users.unlink(missing_ok=True)
            os.mkfifo(users, 0o600)
            reading = os.open(users, os.O_RDONLY | os.O_NONBLOCK)
            user = os.open(users, os.O_WRONLY)
            os.set_blocking(reading, True)
            command = [sys.executable, "-W", "ignore", "-c", _SERVER]
            process = subprocess.Popen(command, stdin=reading, stdout=subprocess.PIPE, text=True)
            os.close(reading)
            assert process.stdout
            with process.stdout:
                port = process.stdout.readline().strip()
            assert port, "moto's server did not start"
            (folder / "s3.port").write_text(port)
            process.returncode = 0  # not waited for: other processes may use it after this one has ended
        port = (folder / "s3.port").read_text()
    yield f"http://127.0.0.1:{port}"
    os.close(user)


def environment(endpoint: str) -> dict[str, str]:
    """The variables by which every client of S3 finds a server and credentials."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",  # of Delta Lake
        "AWS_EC2_METADATA_DISABLED": "true",
        **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "testing"),
        **dict.fromkeys(("AWS_DEFAULT_REGION", "AWS_REGION"), "us-east-1"),
        **dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), "/dev/null"),
    }


@cache
def client_of(endpoint: str) -> Any:
    """A client of boto3 that does not repeat requests, made once: that takes longer than most requests."""
    import boto3  # type: ignore[import-untyped, unused-ignore]
    from botocore.config import Config  # type: ignore[import-untyped, unused-ignore]

    key = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    once = Config(retries={"total_max_attempts": 1})
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=once, **key)


@dataclass(frozen=True)
class Bucket:
    """A bucket. Its methods go to the server itself, also if the endpoint is a proxy.

    Attributes:
        server: the URL of the server.
        name: of the bucket.
        endpoint: the URL that `options` and `env` name: of the server, or of a proxy.
    """

    server: str
    name: str
    endpoint: str

    @classmethod
    def created(cls, server: str) -> Bucket:
        """Create a bucket with a name of its own."""
        bucket = cls(server, f"test-{uuid.uuid4().hex[:12]}", server)
        bucket.client.create_bucket(Bucket=bucket.name)
        return bucket

    @property
    def url(self) -> str:
        """The URL of the bucket, without a slash at its end."""
        return f"s3://{self.name}"

    @property
    def options(self) -> dict[str, Any]:
        """Storage options for s3fs."""
        region = {"region_name": "us-east-1"}
        return {"key": "testing", "secret": "testing", "endpoint_url": self.endpoint, "client_kwargs": region}

    @property
    def env(self) -> dict[str, str]:
        """Variables of the environment, for another process."""
        return environment(self.endpoint)

    @property
    def client(self) -> Any:
        """A client of boto3 that goes to the server."""
        return client_of(self.server)

    def put(self, key: str, content: bytes | Path) -> str:
        """Write an object, or all files of a folder below the key; return the URL."""
        if isinstance(content, bytes):
            self.client.put_object(Bucket=self.name, Key=key, Body=content)
        else:
            for file in filter(Path.is_file, [content, *content.rglob("*")]):
                name = Path(key, file.relative_to(content)).as_posix()
                self.client.upload_file(str(file), self.name, name)
        return f"{self.url}/{key}"

    def read(self, key: str) -> bytes:
        """Return an object."""
        content: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return content

    def keys(self, prefix: str = "") -> list[str]:
        """The keys of all objects with a prefix, sorted."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return sorted(found["Key"] for page in pages for found in page.get("Contents", ()))

    def remove(self) -> None:
        """Remove the bucket and its objects."""
        keys = self.keys()
        for start in range(0, len(keys), 1000):
            objects = [{"Key": key} for key in keys[start : start + 1000]]
            self.client.delete_objects(Bucket=self.name, Delete={"Objects": objects})
        self.client.delete_bucket(Bucket=self.name)


# An HTTP proxy in front of an S3 server that notes each request, and answers some with a fault.

KINDS = ("500", "503", "slow", "reset", "cut")
SLOW_S = 0.05
_ERRORS = {
    "500": (500, "InternalError", "We encountered an internal error. Please try again."),
    "503": (503, "SlowDown", "Please reduce your request rate."),
}
_DENIED = (403, "AccessDenied", "Access Denied")
_EXPIRED = (400, "ExpiredToken", "The provided token has expired.")
_NOT_THERE = (501, "NotImplemented", "A header you provided implies functionality that is not implemented")
_PER_HOP = ("connection", "keep-alive", "transfer-encoding", "expect", "content-length")


class Request(NamedTuple):
    """A request that came."""

    method: str
    path: str
    range: str  # such as `bytes=0-7`; empty: the whole object
    status: int  # 0: the connection was reset
    sent: int  # bytes of the answer's body


@dataclass
class Faults:
    """What the proxy does; to be changed at any time.

    Attributes:
        endpoint: the URL of the proxy.
        share: of the requests that have a fault. Which ones depends on `seed`, on the request, and on how many times it
            came: a request that is repeated has another chance.
        kinds: of these faults: 500 InternalError, 503 SlowDown, an answer SLOW_S later, a connection that is reset at
            once, or cut in the middle of the answer.
        deny_reads, deny_writes: 403 AccessDenied.
        expired: 400 ExpiredToken for every request.
        conditional_puts: `kept`; `refused`: 501 NotImplemented; `ignored`: as if without the condition.
        requests: that came, in the order of their answers; noted before their answers are sent.
    """

    endpoint: str
    share: float = 0.0
    kinds: tuple[str, ...] = KINDS
    seed: int = 0
    deny_reads: bool = False
    deny_writes: bool = False
    expired: bool = False
    conditional_puts: str = "kept"
    requests: list[Request] = field(default_factory=list)

    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _seen: Counter[str] = field(default_factory=Counter, repr=False)

    def restart(self) -> None:
        """Forget all requests: from now on the same ones have the same faults again."""
        with self._lock:
            self.requests.clear()
            self._seen.clear()

    def fault_of(self, what: str) -> str:
        """Return the fault of a request; empty if it has none."""
        with self._lock:
            self._seen[what] += 1
            chance = random.Random(f"{self.seed} {what} {self._seen[what]}")
        return chance.choice(self.kinds) if chance.random() < self.share else ""

    def refusal(self, method: str, conditional: bool) -> tuple[int, str, str] | None:
        """Return the error that a request has, if any."""
        if self.expired:
            return _EXPIRED
        reads = method in ("GET", "HEAD")
        if (self.deny_reads and reads) or (self.deny_writes and not reads):
            return _DENIED
        return _NOT_THERE if conditional and self.conditional_puts == "refused" else None


class FaultProxy:
    """A proxy that runs as long as its context."""

    def __init__(self, endpoint: str) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
        self._server.daemon_threads = True
        self._server.block_on_close = False  # clients keep their connections open
        self.faults = Faults(f"http://127.0.0.1:{self._server.server_port}")
        self._server.RequestHandlerClass = partial(_Handler, self.faults, endpoint)  # type: ignore[assignment, unused-ignore]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, faults: Faults, endpoint: str, *arguments: object) -> None:
        self.faults, self.endpoint = faults, urlsplit(endpoint)
        super().__init__(*arguments)  # type: ignore[arg-type]

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client has gone
            self.close_connection = True

    def answer(self) -> None:
        body = self._body()
        conditional = self.headers.get("If-None-Match") is not None and self.command in ("PUT", "POST")
        if refusal := self.faults.refusal(self.command, conditional):
            return self._error(*refusal)
        key = self.path[1:].partition("/")[2]  # without the bucket, whose name is another one each time
        fault = self.faults.fault_of(f"{self.command} {key} {self.headers.get('Range')}")
        if fault == "slow":
            threading.Event().wait(SLOW_S)
        if fault in _ERRORS:
            return self._error(*_ERRORS[fault])
        if fault == "reset":
            self._note(0, 0)
            return self._reset()
        return self._forward(body, fault == "cut")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - the names that http.server calls

    def log_message(self, *arguments: object) -> None:
        pass

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _forward(self, body: bytes, cut: bool) -> None:
        kept = {name: value for name, value in self.headers.items() if name.lower() not in _PER_HOP}
        if self.faults.conditional_puts == "ignored" and self.command in ("PUT", "POST"):
            kept = {name: value for name, value in kept.items() if name.lower() != "if-none-match"}
        if self.command in ("PUT", "POST"):
            kept["Content-Length"] = str(len(body))
        with closing(http.client.HTTPConnection(self.endpoint.netloc, timeout=60)) as upstream:
            upstream.request(self.command, self.path, body or None, kept)
            found = upstream.getresponse()
            content = found.read()
            headers = [(name, value) for name, value in found.getheaders() if name.lower() not in _PER_HOP]
            length = found.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self._send(found.status, headers, length, content, cut and len(content) > 1)

    def _send(
        self, status: int, headers: list[tuple[str, str]], length: str | None, content: bytes, cut: bool = False
    ) -> None:
        self._note(0 if cut else status, len(content) // 2 if cut else len(content))
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if length is not None and status != http.client.NO_CONTENT:
            self.send_header("Content-Length", length)
        self.end_headers()
        if cut:
            self.wfile.write(content[: len(content) // 2])
            self._reset()
        elif self.command != "HEAD":
            self.wfile.write(content)

    def _error(self, status: int, code: str, message: str) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        content = b"" if self.command == "HEAD" else text
        self._send(status, [("Content-Type", "application/xml")], str(len(content)), content)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()  # with linger 0: a reset

    def _note(self, status: int, sent: int) -> None:
        with self.faults._lock:
            self.faults.requests.append(Request(self.command, self.path, self.headers.get("Range", ""), status, sent))
