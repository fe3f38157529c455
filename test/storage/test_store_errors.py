"""What is wrong with a bucket or with the way to it, as one line with the way out."""

from __future__ import annotations

import pytest

from robocache_ros.storage.errors import StoreError, retried

botocore = pytest.importorskip("botocore.exceptions", reason="needs botocore (the fleet extra)")


def malformed(message):
    error = {"Code": "AuthorizationHeaderMalformed", "Message": message}
    return botocore.ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": 400}}, "ListObjectsV2")


class DefaultCredentialsError(Exception):
    """As of google-auth."""


KEYS = "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
REGION = "the bucket is in another region; set AWS_DEFAULT_REGION"
ERRORS = [
    ("s3://raw", botocore.NoCredentialsError(), KEYS),
    ("gs://raw", DefaultCredentialsError(), "no credentials; give them as for other programs of this store"),
    (
        "s3://raw",
        botocore.EndpointConnectionError(endpoint_url="http://127.0.0.1:1/raw?list-type=2&prefix=lift"),
        "no answer from http://127.0.0.1:1; check AWS_ENDPOINT_URL and the network",
    ),
    ("s3://raw", malformed("the region 'us-east-1' is wrong; expecting 'eu-west-1'"), f"{REGION} to eu-west-1"),
    ("s3://raw", malformed("the region is wrong"), REGION),
]
OTHERS = (botocore.ProfileNotFound(profile="lab"), ValueError("Invalid endpoint: 127.0.0.1:9000"))
ERRORS += [("s3://raw", error, f"{error}; correct the settings of AWS in the environment") for error in OTHERS]


@pytest.mark.parametrize(("url", "error", "expected"), ERRORS, ids=lambda value: type(value).__name__)
def test_an_error_of_a_bucket_names_the_way_out(url, error, expected):
    def ask():
        raise error

    with pytest.raises(StoreError) as raised:
        retried(ask, url, "list")
    assert str(raised.value) == f"{url}: {expected}"
