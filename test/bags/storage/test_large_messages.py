"""Large messages are read without a copy, into memory that is reused only when nothing refers to it."""

from __future__ import annotations

import struct
from pathlib import Path

import lz4.frame
import numpy as np
import pytest
from backports import zstd

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.storage import codecs, mcap
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.storage.downloads import StoredFile
from test.bags.conftest import MS, START_NS

COUNT = 60  # more messages than there are blocks to read them into
TYPE = "sensor_msgs/msg/Image"


def large(number: int) -> bytes:
    return bytes([0, 1, 0, 0]) + bytes([number]) * 200_000


@pytest.fixture(params=["none", "storage"])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    messages = [("/image", START_NS + k * MS, large(k)) for k in range(COUNT)]
    return write_bag(tmp_path / "bag", {"/image": TYPE}, messages, compression=request.param)


def test_views_have_the_bytes_of_the_messages(recording: Path) -> None:
    with Bag(recording) as bag:
        assert [bytes(message.data) for message in bag.messages(views=True)] == [large(k) for k in range(COUNT)]


def test_messages_are_bytes_unless_views_are_requested(recording: Path) -> None:
    with Bag(recording) as bag:
        assert {type(message.data) for message in bag.messages()} == {bytes}
        assert {type(message.data) for message in bag.messages(views=True)} == {memoryview}


def test_views_that_are_held_keep_their_bytes(recording: Path) -> None:
    with Bag(recording) as bag:
        held = list(bag.messages(views=True))
        assert sum(1 for _ in bag.messages(views=True)) == COUNT
    assert [bytes(message.data) for message in held] == [large(k) for k in range(COUNT)]


def test_a_block_beyond_the_end_of_the_file_is_short(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
    file = StoredFile(tmp_path / "file")
    assert len(file.block(10_000, 200_000)) == 90_000
    file.close()


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("arrow", [True, False])
def test_data_of_the_declared_size_only_is_decompressed(
    codec: str, arrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "_arrow", codecs._arrow if arrow else lambda: None)
    data = np.random.default_rng(0).integers(0, 4, 300_000, dtype=np.uint8).tobytes()
    packed = {"lz4": lz4.frame.compress, "zstd": zstd.compress}[codec](data)
    assert codecs.decompress(codec, packed, len(data)) == data
    for wrong, size in (
        (packed, len(data) - 1),
        (packed, len(data) + 1),
        (packed[:-9], len(data)),
        (packed[9:], 300_000),
    ):
        with pytest.raises(RoboCacheError):
            codecs.decompress(codec, wrong, size)


def test_messages_are_found_with_and_without_indexes() -> None:
    records = [bytes([5]) + struct.pack("<QHIQQ", 22 + k, k % 3, k, 100 + k, 0) + bytes(k) for k in range(9)]
    records.insert(4, bytes([4]) + struct.pack("<Q", 6) + b"schema")
    places = np.cumsum([0, *map(len, records)]).tolist()[:-1]
    content = b"".join(records)
    entries = [
        (struct.unpack_from("<HIQ", record, 9), place)
        for record, place in zip(records, places, strict=True)
        if record[0] == 5
    ]
    listed = b""
    for key in range(3):
        pairs = b"".join(struct.pack("<QQ", head[2], at) for head, at in entries if head[0] == key)
        listed += bytes([7]) + struct.pack("<QHI", 6 + len(pairs), key, len(pairs)) + pairs

    found, exactly = mcap.indexed_messages(content, listed)
    walked, complete = mcap.walked_messages(content)

    assert exactly
    assert complete
    assert found is not None
    assert list(zip(*(column.tolist() for column in found), strict=True)) == walked
    assert mcap.are_indexed(walked, listed)
    assert [content[a:b] for a, b in zip(found.starts, found.stops, strict=True)] == [bytes(k) for k in range(9)]
    assert mcap.indexed_messages(content, listed[: len(listed) // 2])[0] is None
    assert not mcap.are_indexed(walked, listed[: len(listed) // 2])
    wrong = listed.replace(struct.pack("<Q", 104), struct.pack("<Q", 99))
    assert mcap.indexed_messages(content, wrong)[1] is False
    assert not mcap.are_indexed(walked, wrong)
