"""What is wrong with a bucket or with the way to it, as one line with the way out."""

from __future__ import annotations

from typing import Any

import pytest

from robocache_ros.storage.errors import StoreError, retried

botocore = pytest.importorskip("botocore.exceptions", reason="needs botocore (the fleet extra)")
URL = "s3://raw/lift"


def line_of(error: BaseException, where: str = URL) -> str:
    """The line that an error of a listing becomes."""

    def ask() -> Any:
        raise error

    with pytest.raises(StoreError) as raised:
        retried(ask, where, "list")
    return str(raised.value)


def answered(code: str, message: str) -> BaseException:
    response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    error: BaseException = botocore.ClientError(response, "ListObjectsV2")
    return error


def test_missing_credentials_name_the_variables_that_give_them() -> None:
    expected = f"{URL}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    assert line_of(botocore.NoCredentialsError()) == expected


def test_missing_credentials_of_another_store_name_no_variables_of_aws() -> None:
    class DefaultCredentialsError(Exception):
        """As of google-auth."""

    assert line_of(DefaultCredentialsError(), "gs://raw") == (
        "gs://raw: no credentials; give them as for other programs of this store"
    )


def test_a_server_that_does_not_answer_is_named() -> None:
    error = botocore.EndpointConnectionError(endpoint_url="http://127.0.0.1:1/raw?list-type=2&prefix=lift")
    assert line_of(error) == f"{URL}: no answer from http://127.0.0.1:1; check AWS_ENDPOINT_URL and the network"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("the region 'us-east-1' is wrong; expecting 'eu-west-1'", "set AWS_DEFAULT_REGION to eu-west-1"),
        ("the region is wrong", "set AWS_DEFAULT_REGION"),
    ],
)
def test_a_bucket_of_another_region_names_the_variable(message: str, expected: str) -> None:
    error = answered("AuthorizationHeaderMalformed", message)
    assert line_of(error) == f"{URL}: the bucket is in another region; {expected}"


@pytest.mark.parametrize(
    "error",
    [botocore.ProfileNotFound(profile="lab"), ValueError("Invalid endpoint: 127.0.0.1:9000")],
    ids=["profile", "endpoint"],
)
def test_a_setting_that_cannot_be_used_is_not_taken_for_the_network(error: BaseException) -> None:
    assert line_of(error) == f"{URL}: {error}; correct the settings of AWS in the environment"
