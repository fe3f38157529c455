"""Messages as views, compressed one by one or in chunks."""

from __future__ import annotations

import sqlite3

import lz4.frame
import numpy as np
import pytest
from backports import zstd

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.storage import codecs
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from test.bags.conftest import read
from test.fuzz.recordings import MS, START_NS

COUNT = 60  # more messages than there are blocks to read them into
TYPE = "sensor_msgs/msg/Image"


def large(number):
    return bytes([0, 1, 0, 0]) + bytes([number]) * 200_000


@pytest.fixture(params=["none", "storage"])
def recording(request, tmp_path):
    messages = [("/image", START_NS + k * MS, large(k)) for k in range(COUNT)]
    return write_bag(tmp_path / "bag", {"/image": TYPE}, messages, compression=request.param)


def test_views_have_the_bytes_of_the_messages_and_keep_them_while_they_are_held(recording):
    expected = [large(k) for k in range(COUNT)]
    with Bag(recording) as bag:
        messages = [message.data for message in bag.messages()]
        held = [message.data for message in bag.messages(views=True)]
        assert sum(1 for _ in bag.messages(views=True)) == COUNT
    assert messages == expected
    assert [bytes(data) for data in held] == expected
    assert ({type(data) for data in messages}, {type(data) for data in held}) == ({bytes}, {memoryview})


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("arrow", [True, False])
def test_data_of_the_declared_size_only_is_decompressed(codec, arrow, monkeypatch):
    monkeypatch.setattr(codecs, "_arrow", codecs._arrow if arrow else lambda: None)
    data = np.random.default_rng(0).integers(0, 4, 300_000, dtype=np.uint8).tobytes()
    packed = {"lz4": lz4.frame.compress, "zstd": zstd.compress}[codec](data)
    assert codecs.decompress(codec, packed, len(data)) == data
    size = len(data)
    for wrong, declared in ((packed, size - 1), (packed, size + 1), (packed[:-9], size), (packed[9:], size)):
        with pytest.raises(RoboCacheError):
            codecs.decompress(codec, wrong, declared)


DAMAGE = {
    "its last byte is missing": lambda frame: frame[:-1],
    "it ends with a byte of another frame": lambda frame: frame + b"\x28",
    "its magic number is another": lambda frame: b"\x00" + frame[1:],
    "a block has a reserved type": lambda frame: frame[:6] + bytes([frame[6] | 0x06]) + frame[7:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_message_among_small_ones_is_the_only_one_that_is_lost(make_bag, damage):
    intact, _ = read(make_bag("intact"))
    folder = make_bag("packed", storage="sqlite3", compression="message")
    assert read(folder) == (intact, [])
    with sqlite3.connect(next(folder.glob("*.db3"))) as database:
        ((frame,),) = database.execute("SELECT data FROM messages WHERE id = 71").fetchall()
        database.execute("UPDATE messages SET data = ? WHERE id = 71", (damage(frame),))
    database.close()

    found, notes = read(folder)

    assert found == [message for number, message in enumerate(intact, start=1) if number != 71]
    assert notes[0].endswith(": 1 messages cannot be decompressed and were not read")


def test_small_messages_share_calls_of_the_decompressor(make_bag, monkeypatch):
    pytest.importorskip("pyarrow", minversion=str(codecs._ARROW))
    singly: list[object] = []
    decompress = codecs.decompress
    monkeypatch.setattr(codecs, "decompress", lambda *given: singly.append(given) or decompress(*given))

    messages, _ = read(make_bag(storage="sqlite3", compression="message"))

    assert len(messages) == 140
    assert singly == []
