"""The cache of downloaded files: what it keeps, what it removes, and what it never gives."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from robocache_ros.storage.cache import CACHE_BYTES, VARIABLE, FileCache, cache_bytes_of
from robocache_ros.storage.errors import RemoteError
from robocache_ros.storage.paths import any_path
from test import forked

SIZE = 1000


def partial(number):
    """The name of a file that is not complete."""
    return f"{number:032x}-a.npz.partial"


def writes(number, log=None):
    """A download of a file of one byte value, which is noted in a log."""

    def download(path):
        path.write_bytes(bytes([number]) * SIZE)
        if log:
            with log.open("a") as file:
                file.write(f"{number}\n")

    return download


def opened(cache, number, download=None, size=SIZE):
    return cache.open(f"{number:032x}", "a.npz", size, download or writes(number))


def use(cache, number, log=None):
    with opened(cache, number, writes(number, log)) as file:
        return file.read()


def stored(cache):
    return {int(path.name[:32], 16) for path in cache.folder.glob("*-a.npz*")}


def test_a_file_is_downloaded_once_and_again_where_it_has_lost_its_end(tmp_path):
    cache, log = FileCache(tmp_path / "cache", 10 * SIZE), tmp_path / "log"
    assert [use(cache, 1, log) for _ in range(3)] == [bytes([1]) * SIZE] * 3
    assert log.read_text() == "1\n"
    (path,) = cache.folder.glob("*-a.npz")
    os.truncate(path, SIZE // 2)
    assert use(cache, 1, log) == bytes([1]) * SIZE
    assert log.read_text() == "1\n1\n"


def test_a_limit_of_0_keeps_files_in_use_only(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = FileCache(None, 0, "recordings")
    with opened(cache, 1):
        use(cache, 2)
        assert stored(cache) == {1, 2}
    use(cache, 3)
    assert stored(cache) == {3}


def test_the_files_used_least_recently_are_removed_until_a_larger_one_fits(tmp_path):
    cache = FileCache(tmp_path, 3 * SIZE + SIZE // 2)
    for number in (1, 2, 3, 1, 4):
        use(cache, number)
    assert stored(cache) == {1, 3, 4}
    with opened(cache, 5, lambda path: path.write_bytes(bytes(2 * SIZE)), 2 * SIZE):
        assert stored(cache) == {4, 5}


def test_a_file_is_kept_while_it_is_open_and_then_removed_like_others(tmp_path):
    cache = FileCache(tmp_path, 2 * SIZE)
    with opened(cache, 1) as file:
        for number in range(2, 8):
            use(cache, number)
        assert 1 in stored(cache)
        assert file.read() == bytes([1]) * SIZE
    for number in (2, 3):
        use(cache, number)
    assert 1 not in stored(cache)


def test_a_file_larger_than_the_cache_is_refused(tmp_path):
    with pytest.raises(RemoteError, match=r"a\.npz: 1,000 bytes are more than the cache of 999; raise cache_bytes"):
        use(FileCache(tmp_path, SIZE - 1), 1)


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1])
def test_a_download_of_another_size_is_an_error_and_not_kept(tmp_path, size):
    cache = FileCache(tmp_path / "cache", 10 * SIZE)
    with pytest.raises(RemoteError, match=rf"a\.npz: 1,000 bytes came, not {size:,}; try again"):
        opened(cache, 1, writes(1, tmp_path / "log"), size)
    assert (tmp_path / "log").read_text() == "1\n"  # it is not tried again and again
    assert not stored(cache)


def test_a_failed_download_leaves_nothing_and_takes_no_space(tmp_path):
    def fails(path):
        path.write_bytes(b"half")
        raise OSError("the connection is lost")

    cache = FileCache(tmp_path, 2 * SIZE)
    for _ in range(5):
        with pytest.raises(OSError, match="connection is lost"):
            opened(cache, 1, fails)
    use(cache, 2)
    use(cache, 3)
    assert stored(cache) == {2, 3}


def test_what_a_killed_process_left_is_not_used_and_removed_when_space_is_needed(tmp_path):
    cache = FileCache(tmp_path, 2 * SIZE)
    (tmp_path / partial(1)).write_bytes(b"x" * SIZE)  # as large as the file, but not complete
    assert use(cache, 1) == bytes([1]) * SIZE
    assert not list(tmp_path.glob("*.partial"))
    (tmp_path / partial(9)).write_bytes(b"x" * SIZE)
    os.utime(tmp_path / partial(9), (0, 0))
    (tmp_path / "cache.lock").unlink()  # so that the files are counted
    use(cache, 2)
    assert stored(cache) == {1, 2}


def test_a_file_that_another_reads_is_not_waited_for(tmp_path):
    cache, waits, found = FileCache(tmp_path, 10 * SIZE), threading.Event(), []

    def read():
        waits.set()
        found.append(use(cache, 1))

    other = threading.Thread(target=read)

    def slowly(path):
        other.start()
        waits.wait()
        writes(1)(path)

    with opened(cache, 1, slowly):
        other.join(timeout=60)
    assert found == [bytes([1]) * SIZE]


PROCESS = """
import sys
from pathlib import Path
from robocache_ros.storage.cache import FileCache

cache, log, seed = FileCache(Path(sys.argv[1]), int(sys.argv[3])), Path(sys.argv[2]), int(sys.argv[4])
for step in range(40):
    number = (step * 7 + seed * 3) % 8 + 1
    data = bytes([number]) * 1000

    def download(path):
        path.write_bytes(data)
        with log.open("a") as file:
            file.write(f"{number}\\n")

    with cache.open(f"{number:032x}", "a.npz", 1000, download) as file:
        assert file.read() == data
"""


@pytest.mark.parametrize("files", [4, 20])
def test_processes_that_share_a_cache_read_complete_files(files, tmp_path):
    folder, log = tmp_path / "cache", tmp_path / "log"
    command = [sys.executable, "-c", PROCESS, folder, log, files * SIZE]
    processes = [forked.Popen([*command, seed]) for seed in range(3)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    assert not list(folder.glob("*.partial"))
    downloads = len(log.read_text().splitlines())
    assert downloads == 8 if files == 20 else downloads > 8  # all eight fit; or they replace each other
    # Each process may have had a file open that could not be removed.
    assert sum(path.stat().st_size for path in folder.glob("*-a.npz")) <= (files + 3) * SIZE


@pytest.mark.parametrize(
    ("text", "expected"), [("0", 0), ("1000", 1000), ("16GB", 16 * 10**9), ("1.5 GiB", 3 << 29), ("2TB", 2 * 10**12)]
)
def test_a_limit_is_a_number_and_a_unit(text, expected):
    assert cache_bytes_of(text, "--cache-bytes") == expected


@pytest.mark.parametrize("text", ["lots", "-1", "16 G", "1e9", "", "9999999999TB"])
def test_what_is_not_a_size_is_one_line(text):
    with pytest.raises(RemoteError) as error:
        cache_bytes_of(text, "--cache-bytes")
    assert str(error.value) == f"--cache-bytes: {text!r} is not a size; write for example 16GB"


def test_the_environment_states_the_limit_unless_an_argument_does(monkeypatch):
    pytest.importorskip("fsspec", reason="needs fsspec (the remote extra)")

    def limit_of(**options):
        return any_path("memory://raw/a.mcap", "recordings", **options).cache.limit

    monkeypatch.delenv(VARIABLE, raising=False)
    assert limit_of() == CACHE_BYTES
    monkeypatch.setenv(VARIABLE, "2GB")
    assert limit_of() == 2 * 10**9
    assert limit_of(cache_bytes=5) == 5
    monkeypatch.setenv(VARIABLE, "lots")
    with pytest.raises(RemoteError, match=f"^{VARIABLE}: 'lots' is not a size"):
        limit_of()
