"""Errors of stores: one line that names the URL and what to do."""

from __future__ import annotations

import errno
import os
import random
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeVar

from robocache_ros.errors import RoboCacheError, printable


class RemoteError(RoboCacheError):
    """A URL that cannot be used; the message names it."""


class NotReadError(Exception):
    """A part of a remote file was not downloaded. Readers of damaged files must not take it for damage: `Bag` ends it.

    Attributes:
        error: the reason.
    """

    def __init__(self, error: RemoteError) -> None:
        super().__init__(str(error))
        self.error = error


WAITS_S = (0.1, 0.5, 2.0, 8.0)  # between tries, at most; s3fs and botocore have waited before each of them
_PASSING = frozenset(("InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout", "OperationAborted"))
_PASSING_STATUS = frozenset((408, 409, 429, 500, 502, 503, 504))
_PASSING_NUMBERS = frozenset(
    (errno.EBUSY, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT)
    + ((errno.EREMOTEIO,) if hasattr(errno, "EREMOTEIO") else ())
)
# Classes of aiohttp, botocore and fsspec, by name: none of them need be installed. And asyncio's TimeoutError, which is
# another class before Python 3.11: asyncio takes long to import.
_PASSING_CLASSES = frozenset(
    (
        *("HTTPClientError", "ClientError", "ClientPayloadError", "IncompleteRead", "FSTimeoutError"),
        *("ResponseParserError", "TimeoutError"),
    )
)
_EXPIRED = frozenset(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"))
_DENIED = frozenset((401, 403))
_OTHER_REGION = frozenset(("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"))
# Errors of botocore, by class: what the environment or a file of settings states cannot be used.
_SETTINGS = frozenset(("ProfileNotFound", "ConfigParseError", "ConfigNotFound", "InvalidRegionError", "NoRegionError"))
_ENDPOINT = re.compile(r"endpoint URL: \"?(\w+://[^/\"]{1,60})")
_REGION = re.compile(r"expecting '([\w-]{1,30})'")

T = TypeVar("T")


class StoreProblem(Enum):
    """What is wrong with a bucket, or with the way to it."""

    denied = "denied"  # no permission
    expired = "expired"  # credentials
    missing = "missing"  # no such bucket
    unsupported = "unsupported"  # the server does not know what was asked
    unreachable = "unreachable"  # also after several tries


class StoreError(RemoteError):
    """A bucket that cannot be used, or not now. It ends an export, which the same command continues."""

    def __init__(self, message: str, problem: StoreProblem = StoreProblem.unreachable) -> None:
        super().__init__(message)
        self.problem = problem

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.problem)


def retried(request: Callable[[], T], where: str, doing: str) -> T:
    """Return the answer to a request, after a bounded number of tries.

    Args:
        request: sends the request; it may have succeeded although it raises an error.
        where: the URL, for errors.
        doing: read, write, copy, list or delete.

    Errors:
        FileExistsError, FileNotFoundError: as of the request; the latter not if it writes.
        StoreError: another error, or an error of every try.
    """
    for wait_s in (*WAITS_S, None):
        try:
            return request()
        except RemoteError:
            raise
        except Exception as error:
            if is_taken(error):
                raise FileExistsError(errno.EEXIST, "exists", where) from error
            if isinstance(error, FileNotFoundError) and doing != "write":
                raise FileNotFoundError(errno.ENOENT, "not there", where) from error
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise
            if wait_s is None or not passes(error):
                raise _described(error, where, doing) from error
        time.sleep(wait_s * random.uniform(0.5, 1))  # so that many workers do not come back at once
    raise AssertionError


def passes(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    for one in _chain(error):
        code, status = _answer(one)
        if code or status:
            return code in _PASSING or "Conflict" in code or status in _PASSING_STATUS
        if isinstance(one, (TimeoutError, ConnectionError)):
            return True
        if isinstance(one, OSError) and one.errno in _PASSING_NUMBERS and one is error and one.__cause__ is None:
            return True
        classes = {kind.__name__ for kind in type(one).__mro__}
        if classes & _PASSING_CLASSES and "EndpointConnectionError" not in classes:
            return True
    return False


def is_taken(error: BaseException) -> bool:
    """Whether a conditional put was refused because there is an object."""
    if isinstance(error, FileExistsError):
        return True
    # Servers other than that of AWS do not state the condition, and s3fs then does not raise a FileExistsError.
    return any(_answer(one)[0] == "PreconditionFailed" or _answer(one)[1] == 412 for one in _chain(error))


def _described(error: BaseException, where: str, doing: str) -> StoreError:
    answers = [_answer(one) for one in _chain(error)]
    codes, statuses = {code for code, _ in answers}, {status for _, status in answers}
    reason = printable(" ".join(str(error).split()) or type(error).__name__, 60)
    if codes & _EXPIRED or "expired" in reason.lower():
        text = "the credentials have expired; renew them and run the same command again"
        return StoreError(f"{where}: {text}", StoreProblem.expired)
    if isinstance(error, PermissionError) or statuses & _DENIED:
        text = f"no permission to {doing}; check the credentials and the permissions on the bucket"
        return StoreError(f"{where}: {text}", StoreProblem.denied)
    kinds = {kind.__name__ for one in _chain(error) for kind in type(one).__mro__}
    if any("Credentials" in kind for kind in kinds):
        names = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        how = names if where.startswith("s3") else "give them as for other programs of this store"
        return StoreError(f"{where}: no credentials; {how}", StoreProblem.denied)
    if isinstance(error, FileNotFoundError) or "NoSuchBucket" in codes:
        return StoreError(f"{where}: no such bucket; create it, or correct the URL", StoreProblem.missing)
    if 501 in statuses or isinstance(error, NotImplementedError) or getattr(error, "errno", 0) == errno.ENOSYS:
        return StoreError(f"{where}: cannot {doing}: {reason}; use another bucket", StoreProblem.unsupported)
    if codes & _OTHER_REGION:
        found = _REGION.search(str(error))
        text = f"the bucket is in another region; set AWS_DEFAULT_REGION{f' to {found[1]}' if found else ''}"
        return StoreError(f"{where}: {text}", StoreProblem.denied)
    if kinds & _SETTINGS or reason.startswith("Invalid endpoint"):
        return StoreError(f"{where}: {reason}; correct the settings of AWS in the environment", StoreProblem.denied)
    if found := _ENDPOINT.search(str(error)):
        return StoreError(f"{where}: no answer from {found[1]}; check AWS_ENDPOINT_URL and the network")
    return StoreError(f"{where}: cannot {doing}: {reason}; check the network, and run the same command again")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, at most a dozen."""
    one: BaseException | None = error
    for _ in range(12):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__


def _answer(error: BaseException) -> tuple[str, int]:
    """Return the code and the HTTP status that a server answered with; empty and 0 if an error has none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # of botocore
        code = str(response.get("Error", {}).get("Code", ""))
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return code, int(status) if str(status).isdigit() else 0
    found = (getattr(error, name, None) for name in ("status", "status_code", "code"))  # of aiohttp, Azure, gcsfs
    return "", next((number for number in found if isinstance(number, int) and number >= 400), 0)


_ADVICE = {
    errno.ENOSPC: "free some space, or choose a folder on another disk",
    errno.EDQUOT: "free some space, or choose a folder on another disk",
    errno.EFBIG: "raise the limit on file sizes, or choose a folder on another file system",
    errno.ENOENT: "check that it is still there",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "check its permissions, or choose another folder",
    errno.EPERM: "check its permissions, or choose another folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "close other programs, or raise the limit with ulimit -n",
}
_NUMBER = re.compile(r"\[errno (\d{1,3})\]", re.IGNORECASE)


@contextmanager
def file_errors(path: object, *, but: Collection[int] = ()) -> Iterator[None]:
    """Convert an OSError to a RoboCacheError that names its file, or `path` if the error names no file.

    Args:
        path: the file or folder in use, whose text is shown.
        but: error numbers (errno) that are not converted.
    """
    try:
        yield
    except OSError as error:
        if error_number(error) in but:
            raise
        raise RoboCacheError(_line_of(error, path)) from error


def error_number(error: OSError) -> int:
    """Return the errno of an error, 0 if it has none."""
    if isinstance(error.errno, int) and error.errno > 0:
        return error.errno
    in_text = _NUMBER.search(str(error))  # some versions of pyarrow give the errno only in the text
    return int(in_text[1]) if in_text else 0


def _line_of(error: OSError, path: object) -> str:
    number = error_number(error)
    reason = os.strerror(number) if number else printable(" ".join(str(error).split()) or type(error).__name__, 80)
    where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) and error.filename else path
    return f"{printable(where)}: {reason}; {_ADVICE.get(number, 'choose another folder')}"
