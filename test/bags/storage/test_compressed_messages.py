"""Recordings whose messages are compressed one by one: many small ones are decompressed together."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.storage import codecs

DAMAGE = {
    "its last byte is missing": lambda frame: frame[:-1],
    "it ends with a byte of another frame": lambda frame: frame + b"\x28",
    "its magic number is another": lambda frame: b"\x00" + frame[1:],
    "a block has a reserved type": lambda frame: frame[:6] + bytes([frame[6] | 0x06]) + frame[7:],
}


def read(folder: Path) -> tuple[list[tuple[str, int, bytes]], list[str]]:
    with Bag(folder) as bag:
        return [(message.topic, message.log_ns, bytes(message.data)) for message in bag.messages()], bag.notes


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_message_among_small_ones_is_the_only_one_that_is_lost(
    make_bag: Callable[..., Path], damage: Callable[[bytes], bytes]
) -> None:
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


def test_small_messages_share_calls_of_the_decompressor(
    make_bag: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow", minversion=str(codecs._ARROW))
    singly: list[object] = []
    decompress = codecs.decompress
    monkeypatch.setattr(codecs, "decompress", lambda *given: singly.append(given) or decompress(*given))

    messages, _ = read(make_bag(storage="sqlite3", compression="message"))

    assert len(messages) == 140
    assert singly == []
