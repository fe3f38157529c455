"""What is wrong with a bucket or with the way to it, as one line with the way out."""

from __future__ import annotations

import pytest

from robocache_ros.storage.errors import StoreError, retried

botocore = pytest.importorskip("botocore.exceptions", reason="needs botocore (the fleet extra)")
URL = "s3://raw/lift"


def line_of(error, where=URL):
    """The line that an error of a listing becomes."""

    def ask():
        raise error

    with pytest.raises(StoreError) as raised:
        retried(ask, where, "list")
    return str(raised.value)


def malformed(message):
    error = {"Code": "AuthorizationHeaderMalformed", "Message": message}
    return botocore.ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": 400}}, "ListObjectsV2")


class DefaultCredentialsError(Exception):
    """As of google-auth."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            botocore.NoCredentialsError(),
            "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        ),
        (
            botocore.EndpointConnectionError(endpoint_url="http://127.0.0.1:1/raw?list-type=2&prefix=lift"),
            "no answer from http://127.0.0.1:1; check AWS_ENDPOINT_URL and the network",
        ),
        (
            malformed("the region 'us-east-1' is wrong; expecting 'eu-west-1'"),
            "the bucket is in another region; set AWS_DEFAULT_REGION to eu-west-1",
        ),
        (malformed("the region is wrong"), "the bucket is in another region; set AWS_DEFAULT_REGION"),
        *(
            (error, f"{error}; correct the settings of AWS in the environment")
            for error in (botocore.ProfileNotFound(profile="lab"), ValueError("Invalid endpoint: 127.0.0.1:9000"))
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_a_bucket_names_the_way_out(error, expected):
    assert line_of(error) == f"{URL}: {expected}"


def test_missing_credentials_of_another_store_name_no_variables_of_aws():
    expected = "gs://raw: no credentials; give them as for other programs of this store"
    assert line_of(DefaultCredentialsError(), "gs://raw") == expected
