"""The S3 server of the tests, and the faults of its proxy."""

from __future__ import annotations

import http.client
from contextlib import suppress

import fsspec
import pytest

from test.fleet.fault_proxy import Faults
from test.fleet.s3_server import Bucket, client_of

SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request"}


def put_if_absent(bucket: Bucket, key: str) -> str:
    """Put an object that must not be there yet; return the server's refusal."""
    from botocore.exceptions import ClientError  # type: ignore[import-untyped, unused-ignore]

    try:
        client_of(bucket.endpoint).put_object(Bucket=bucket.name, Key=key, Body=b"x", IfNoneMatch="*")
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def test_fsspec_finds_the_server_by_the_environment(s3: Bucket) -> None:
    url = s3.put("a/b", b"text")

    with fsspec.open(url) as file:
        assert file.read() == b"text"


def test_the_server_keeps_conditional_puts(s3: Bucket) -> None:
    assert [put_if_absent(s3, "a"), put_if_absent(s3, "a")] == ["", "PreconditionFailed"]


def test_each_test_has_a_bucket_of_its_own(s3: Bucket) -> None:
    assert s3.keys() == []


def test_the_proxy_notes_requests_and_their_bytes(faulty_s3: Bucket, faults: Faults) -> None:
    url = faulty_s3.put("a", bytes(1000))

    assert fsspec.filesystem("s3").cat_file(url, start=100, end=300) == bytes(200)

    (read,) = [request for request in faults.requests if request.method == "GET"]
    assert (read.path, read.range, read.sent) == (f"/{faulty_s3.name}/a", "bytes=100-299", 200)


def test_the_requests_that_have_faults_depend_on_the_seed(faulty_s3: Bucket, faults: Faults) -> None:
    faulty_s3.put("a", bytes(1000))

    def statuses(seed: int) -> list[int]:
        faults.seed, faults.share = seed, 0.5
        faults.restart()
        for start in range(40):
            connection = http.client.HTTPConnection(faults.endpoint.removeprefix("http://"))
            with suppress(OSError, http.client.HTTPException):
                connection.request("GET", f"/{faulty_s3.name}/a", headers=SIGNED | {"Range": f"bytes={start}-"})
                connection.getresponse().read()
            connection.close()
        return [request.status for request in faults.requests]

    first = statuses(1)

    assert first == statuses(1) != statuses(2)
    assert set(first) == {0, 206, 500, 503}


def test_the_proxy_denies_writes(faulty_s3: Bucket, faults: Faults) -> None:
    faulty_s3.put("a", b"x")
    faults.deny_writes = True

    assert put_if_absent(faulty_s3, "b") == "AccessDenied"
    assert faulty_s3.read("a") == b"x"


def test_the_proxy_says_that_credentials_have_expired(faulty_s3: Bucket, faults: Faults) -> None:
    faults.expired = True

    assert put_if_absent(faulty_s3, "b") == "ExpiredToken"


@pytest.mark.parametrize(("mode", "answers"), [("refused", ["NotImplemented"] * 2), ("ignored", ["", ""])])
def test_the_proxy_can_lack_conditional_puts(mode: str, answers: list[str], faulty_s3: Bucket, faults: Faults) -> None:
    faults.conditional_puts = mode

    assert [put_if_absent(faulty_s3, "a"), put_if_absent(faulty_s3, "a")] == answers
