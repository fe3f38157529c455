"""A recording that was cut or damaged: what is left of it is read, and the notes state what is missing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.errors import RoboCacheError


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
