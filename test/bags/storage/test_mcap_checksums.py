from __future__ import annotations

import struct
from pathlib import Path

import pytest

from robocache_ros.bags.reader import CHECKED, UNCHECKED, Bag
from robocache_ros.bags.storage.mcap import add_checksums
from robocache_ros.bags.write import write_bag

TYPES = {"/text": "std_msgs/msg/String"}
MESSAGES = [("/text", 10**9 * (1 + k), b"\0\1\0\0" + b"\5\0\0\0" + b"abc%d\0" % (k % 10)) for k in range(30)]


@pytest.mark.parametrize("compression", ["none", "storage"])
def test_a_recording_with_checksums_has_the_same_messages(tmp_path: Path, compression: str) -> None:
    path = write_bag(tmp_path / "bag", TYPES, MESSAGES, compression=compression)
    with Bag(path) as bag:
        assert bag.integrity == UNCHECKED
        before = list(bag.messages())
    add_checksums(path / "bag.mcap")
    with Bag(path) as bag:
        assert bag.integrity == CHECKED
        assert list(bag.messages()) == before


def test_an_altered_message_is_detected(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", TYPES, MESSAGES)
    file = path / "bag.mcap"
    add_checksums(file)
    file.write_bytes(file.read_bytes().replace(b"abc7", b"abX7", 1))
    with Bag(path) as bag:
        assert list(bag.messages()) == []
        assert any("1 of 1 chunks are damaged" in note for note in bag.notes)


@pytest.mark.parametrize("count", [30, 3000])  # of messages in the chunk: few are read in another way than many
@pytest.mark.parametrize("altered", ["index", "message"])
def test_a_chunk_without_checksum_is_damaged_if_a_message_differs_from_its_index(
    tmp_path: Path, count: int, altered: str
) -> None:
    messages = [("/text", 10**9 + k, b"\0\1\0\0" + b"\5\0\0\0" + b"abcd\0") for k in range(count)]
    path = write_bag(tmp_path / "bag", TYPES, messages)
    file, wanted = path / "bag.mcap", struct.pack("<Q", 10**9 + count // 2)
    with Bag(path) as bag:
        assert len(list(bag.messages())) == count
    content = file.read_bytes()
    at = content.index(wanted) if altered == "message" else content.rindex(wanted)
    file.write_bytes(content[:at] + struct.pack("<Q", 10**9 + count) + content[at + 8 :])
    with Bag(path) as bag:
        assert list(bag.messages()) == []
        assert any("1 of 1 chunks are damaged" in note for note in bag.notes)
