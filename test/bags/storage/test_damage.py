"""Whatever happened to a file: it is read, or it is one RoboCacheError."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from test.bags.conftest import MS, START_NS, TYPES, numbers, pose

KINDS = {"mcap": ("mcap", "none"), "mcap-zstd": ("mcap", "storage"), "sqlite3": ("sqlite3", "none")}
thorough = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("complete")
    messages = [("/arm/pose", START_NS + 20 * k * MS, pose(START_NS + 20 * k * MS)) for k in range(20)]
    messages += [("/arm/command", START_NS + 400 * MS + k, numbers(k)) for k in range(5)]
    found = {}
    for name, (storage, compression) in KINDS.items():
        path = write_bag(folder / name, TYPES, messages, storage=storage, compression=compression)
        found[name] = next(f for f in path.iterdir() if f.suffix in (".mcap", ".db3"))
    return found


def read_or_refused(path: Path, data: bytes) -> int | None:
    path.write_bytes(data)
    try:
        with Bag(path) as bag:
            return sum(1 for _ in bag.messages())
    except RoboCacheError:
        return None


@pytest.mark.parametrize("kind", KINDS)
@thorough
@given(share=st.floats(0, 1))
def test_cut_anywhere(files: dict[str, Path], tmp_path: Path, kind: str, share: float) -> None:
    suffix, data = files[kind].suffix, files[kind].read_bytes()
    count = read_or_refused(tmp_path / f"cut{suffix}", data[: int(share * len(data))])
    assert count is None or 0 < count <= 25


@pytest.mark.parametrize("missing", [1, 4092, 4095, 4096])
def test_sqlite_without_its_last_page_is_refused_and_not_read_as_empty(
    files: dict[str, Path], tmp_path: Path, missing: int
) -> None:
    data = files["sqlite3"].read_bytes()
    (tmp_path / "cut.db3").write_bytes(data[:-missing])
    with pytest.raises(RoboCacheError, match=rf"cut.db3: truncated to [\d,]+ of {len(data):,} bytes; .* \.recover"):
        Bag(tmp_path / "cut.db3")


@pytest.mark.parametrize("kind", KINDS)
@thorough
@given(share=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255))
def test_a_byte_altered_anywhere(files: dict[str, Path], tmp_path: Path, kind: str, share: float, value: int) -> None:
    suffix, data = files[kind].suffix, files[kind].read_bytes()
    altered = bytearray(data)
    altered[int(share * len(data))] = value
    count = read_or_refused(tmp_path / f"altered{suffix}", bytes(altered))
    assert count is None or count <= 25


@pytest.mark.parametrize("kind", ["mcap", "mcap-zstd"])
@thorough
@given(tail=st.binary(max_size=200), share=st.floats(0, 1))
def test_noise_after_a_cut(files: dict[str, Path], tmp_path: Path, kind: str, tail: bytes, share: float) -> None:
    suffix, data = files[kind].suffix, files[kind].read_bytes()
    count = read_or_refused(tmp_path / f"noise{suffix}", data[: int(share * len(data))] + tail)
    assert count is None or count <= 25
