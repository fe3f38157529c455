"""moto's S3 server in a process of its own, and buckets on it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from test.shared import locked

_SERVER = """
import contextlib, logging, sys, threading
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
WSGIRequestHandler.protocol_version = "HTTP/1.1"  # connections are kept
moto = DomainDispatcherApplication(create_backend_app)
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
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",  # of Delta Lake
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
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
        client = self.client
        if isinstance(content, Path) and content.is_dir():
            for file in sorted(content.rglob("*")):
                if file.is_file():
                    client.upload_file(str(file), self.name, f"{key}/{file.relative_to(content).as_posix()}")
        elif isinstance(content, Path):
            client.upload_file(str(content), self.name, key)
        else:
            client.put_object(Bucket=self.name, Key=key, Body=content)
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
