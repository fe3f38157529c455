"""The limit on the size of the cache of downloaded files."""

from __future__ import annotations

import pytest

from robocache_ros.storage.cache import CACHE_BYTES, VARIABLE, cache_bytes_of
from robocache_ros.storage.errors import RemoteError
from robocache_ros.storage.paths import any_path

pytest.importorskip("fsspec", reason="needs fsspec (the remote extra)")


def limit_of(**options):
    return any_path("memory://raw/a.mcap", "recordings", **options).cache.limit


@pytest.mark.parametrize(
    ("text", "expected"), [("0", 0), ("1000", 1000), ("16GB", 16 * 10**9), ("1.5 GiB", 3 << 29), ("2TB", 2 * 10**12)]
)
def test_a_size_is_a_number_and_a_unit(text, expected):
    assert cache_bytes_of(text, "--cache-bytes") == expected


@pytest.mark.parametrize("text", ["lots", "-1", "16 G", "1e9", "", "9999999999TB"])
def test_what_is_not_a_size_is_one_line(text):
    with pytest.raises(RemoteError) as error:
        cache_bytes_of(text, "--cache-bytes")
    assert str(error.value) == f"--cache-bytes: {text!r} is not a size; write for example 16GB"


def test_the_environment_states_the_limit_unless_an_argument_does(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert limit_of() == CACHE_BYTES
    monkeypatch.setenv(VARIABLE, "2GB")
    assert limit_of() == 2 * 10**9
    assert limit_of(cache_bytes=5) == 5
    monkeypatch.setenv(VARIABLE, "lots")
    with pytest.raises(RemoteError, match=f"^{VARIABLE}: 'lots' is not a size; write for example 16GB$"):
        limit_of()
