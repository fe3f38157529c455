"""Damaged and cut files: each is read, or is one RoboCacheError."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from test.bags.conftest import MS, START_NS, TYPES, numbers, pose

KINDS = {"mcap": ("mcap", "none"), "mcap-zstd": ("mcap", "storage"), "sqlite3": ("sqlite3", "none")}
thorough = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


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


def mcap_of(bag: Path) -> Path:
    return next(bag.glob("*.mcap"))


def test_broken_metadata_does_not_hide_the_messages(make_bag: Callable[..., Path]) -> None:
    folder = make_bag()
    with Bag(folder) as bag:
        complete = list(bag.messages())
    (folder / "metadata.yaml").write_text("rosbag2_bagfile_information: [")
    with Bag(folder) as bag:
        assert list(bag.messages()) == complete


def test_without_metadata_the_files_are_read_and_it_says_so(make_bag: Callable[..., Path]) -> None:
    folder = make_bag()
    (folder / "metadata.yaml").unlink()
    with Bag(folder) as bag:
        assert len(list(bag.messages())) == 140
        assert "no metadata.yaml" in bag.notes[0]


def test_a_cut_mcap_is_read_up_to_its_cut_and_it_says_so(panda_lift: Path, tmp_path: Path) -> None:
    data = mcap_of(panda_lift).read_bytes()
    (tmp_path / "cut.mcap").write_bytes(data[: len(data) // 2])
    with Bag(panda_lift) as complete, Bag(tmp_path / "cut.mcap") as cut:
        kept = list(cut.messages())
        assert kept == list(complete.messages())[: len(kept)]
        assert len(kept) > 2000
        assert f"{len(kept)} messages were recovered" in cut.notes[0]
        assert {t.name: t.type for t in cut.topics.values()} == {t.name: t.type for t in complete.topics.values()}


def test_a_cut_mcap_in_its_folder_is_read_too(panda_lift: Path, tmp_path: Path) -> None:
    shutil.copytree(panda_lift, tmp_path / "bag")
    file = mcap_of(tmp_path / "bag")
    file.write_bytes(file.read_bytes()[:-5000])
    with Bag(tmp_path / "bag") as bag:
        assert len(list(bag.messages())) == 6456


@pytest.mark.parametrize("size", [4, 8, 30, 500])
def test_an_mcap_cut_before_its_first_message_is_an_error(panda_lift: Path, tmp_path: Path, size: int) -> None:
    (tmp_path / "cut.mcap").write_bytes(mcap_of(panda_lift).read_bytes()[:size])
    with pytest.raises(RoboCacheError, match=r"truncated before its first complete message|not an MCAP file"):
        Bag(tmp_path / "cut.mcap")


@pytest.mark.parametrize(
    ("size", "expected"), [(50, "cannot be read, it is damaged or truncated"), (9000, "truncated to")]
)
def test_a_cut_sqlite_recording_is_an_error(
    make_bag: Callable[..., Path], tmp_path: Path, size: int, expected: str
) -> None:
    file = next(make_bag(storage="sqlite3").glob("*.db3"))
    (tmp_path / "cut.db3").write_bytes(file.read_bytes()[:size])
    with pytest.raises(RoboCacheError, match=rf"cut\.db3: {expected}"):
        Bag(tmp_path / "cut.db3")


def test_a_damaged_chunk_is_left_out_and_counted(panda_lift: Path, tmp_path: Path) -> None:
    data = bytearray(mcap_of(panda_lift).read_bytes())
    data[5_000_000:5_000_100] = bytes(100)
    (tmp_path / "bad.mcap").write_bytes(data)
    with Bag(panda_lift) as complete, Bag(tmp_path / "bad.mcap") as bag:
        messages, kept = list(complete.messages()), list(bag.messages())
        chunks = "1 of [0-9]+ chunks are damaged"
        lost = len(messages) - len(kept)
        assert re.fullmatch(rf"bad\.mcap: {chunks}; {lost:,} of 6,456 messages could not be read", bag.notes[0])
    assert set(kept) < set(messages)
