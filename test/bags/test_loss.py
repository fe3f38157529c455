"""What a recording promises and does not hold is stated in its notes, and nothing else is."""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from rosbags.rosbag2.writer import zstd

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.storage import mcap
from robocache_ros.errors import RoboCacheError
from test.bags.conftest import MS, START_NS, numbers
from test.fuzz.mcap_writer import McapLayout, write_mcap

TYPES = {"/a": ("std_msgs/msg/Float64MultiArray", ""), "/b": ("std_msgs/msg/Float64MultiArray", "")}
MESSAGES = [("/a" if k % 3 else "/b", START_NS + 10 * k * MS, numbers(k, k)) for k in range(200)]


def read(path: Path, data: bytes | bytearray | None = None) -> tuple[list[RawMessage], list[str]]:
    if data is not None:
        path.write_bytes(data)
    with Bag(path) as bag:
        found = list(bag.messages())
        return found, bag.notes


def places(data: bytes | bytearray, op: int) -> list[tuple[int, int]]:
    """Start and stop of the content of each record of a kind."""
    return [(start, stop) for kind, start, stop in mcap.records(bytes(data), len(mcap.MCAP_MAGIC)) if kind == op]


LAYOUTS = {
    "plain": McapLayout(),
    "lz4": McapLayout(compression="lz4"),
    "zstd": McapLayout(compression="zstd"),
    "no chunks": McapLayout(chunk_messages=0),
    "no summary": McapLayout(summary=False),
    "no checksums": McapLayout(checksums=False),
    "no message indexes": McapLayout(message_indexes=False),
    "half outside of chunks": McapLayout(loose_every=2),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_complete_file_is_read_without_a_note(tmp_path: Path, layout: McapLayout) -> None:
    found, notes = read(tmp_path / "a.mcap", write_mcap(TYPES, MESSAGES, layout))
    assert found == MESSAGES
    assert notes == []


@pytest.mark.parametrize("summary", [True, False])
def test_a_chunk_that_does_not_match_its_checksum_is_counted(tmp_path: Path, summary: bool) -> None:
    data = bytearray(write_mcap(TYPES, MESSAGES, McapLayout(summary=summary)))
    start, stop = places(data, mcap.CHUNK)[3]
    data[(start + stop) // 2] ^= 1
    found, notes = read(tmp_path / "a.mcap", data)
    assert found == MESSAGES[:60] + MESSAGES[80:]
    assert notes == ["a.mcap: 1 of 10 chunks are damaged; 20 of 200 messages could not be read"]


def test_a_chunk_whose_head_is_zeroed_is_counted_and_the_next_one_is_read(tmp_path: Path) -> None:
    data = bytearray(write_mcap(TYPES, MESSAGES))
    start, _ = places(data, mcap.CHUNK)[4]
    data[start - 9 : start + 40] = bytes(49)
    found, notes = read(tmp_path / "a.mcap", data)
    assert found == MESSAGES[:80] + MESSAGES[100:]
    assert notes == ["a.mcap: 1 of 10 chunks are damaged; 20 of 200 messages could not be read"]


def test_without_a_summary_zeros_end_the_recording_and_it_is_stated(tmp_path: Path) -> None:
    data = bytearray(write_mcap(TYPES, MESSAGES, McapLayout(summary=False)))
    start, _ = places(data, mcap.CHUNK)[4]
    data[start - 9 : start + 40] = bytes(49)
    found, notes = read(tmp_path / "a.mcap", data)
    assert found == MESSAGES[:80]
    assert notes[0].startswith(f"a.mcap: is damaged at byte {start - 9:,}; 80 messages were recovered")


def test_a_summary_that_does_not_match_its_checksum_is_not_believed(tmp_path: Path) -> None:
    data = bytearray(write_mcap(TYPES, MESSAGES))
    start, _ = places(data, mcap.CHUNK_INDEX)[0]
    struct.pack_into("<Q", data, start, 0)
    found, notes = read(tmp_path / "a.mcap", data)
    assert found == MESSAGES
    assert notes == ["a.mcap: its summary is damaged, so its records were read one by one"]


def test_an_index_that_leaves_chunks_out_does_not_hide_them(tmp_path: Path) -> None:
    data = write_mcap(TYPES, MESSAGES, McapLayout(checksums=False))
    start, stop = places(data, mcap.CHUNK_INDEX)[0]
    found, _ = read(tmp_path / "a.mcap", data[: start - 9] + data[stop:])
    assert found == MESSAGES


@pytest.mark.parametrize("where", ["no chunks", "half outside of chunks"])
def test_an_altered_message_outside_of_chunks_is_stated(tmp_path: Path, where: str) -> None:
    data = bytearray(write_mcap(TYPES, MESSAGES, LAYOUTS[where]))
    _, stop = places(data, mcap.MESSAGE)[7]
    data[stop - 1] ^= 1
    _, notes = read(tmp_path / "a.mcap", data)
    assert notes == ["a.mcap: the checksum of its data does not match; some messages may be altered"]


def test_statistics_that_promise_more_are_stated(tmp_path: Path) -> None:
    data = bytearray(write_mcap(TYPES, MESSAGES, McapLayout(checksums=False)))
    start, stop = places(data, mcap.STATISTICS)[0]
    struct.pack_into("<Q", data, start, 210)
    struct.pack_into("<Q", data, stop - 8, 77)
    found, notes = read(tmp_path / "a.mcap", data)
    assert len(found) == 200
    assert notes == ["a.mcap: 200 of 210 messages of the selected topics were found"]


def test_a_chunk_that_is_damaged_is_counted_once_however_often_it_is_read(tmp_path: Path) -> None:
    data = bytearray(write_mcap(TYPES, MESSAGES))
    data[places(data, mcap.CHUNK)[3][1] - 1] ^= 1
    (tmp_path / "a.mcap").write_bytes(data)
    with Bag(tmp_path / "a.mcap") as bag:
        for _ in range(2):
            assert len(list(bag.messages())) == 180
        assert len(bag.notes) == 1


def test_a_file_that_becomes_shorter_while_it_is_read_is_damaged(tmp_path: Path) -> None:
    data = write_mcap(TYPES, [(t, ns, numbers(*range(4000))) for t, ns, _ in MESSAGES])
    (tmp_path / "a.mcap").write_bytes(data)
    with Bag(tmp_path / "a.mcap") as bag:
        messages = bag.messages()
        next(messages)
        with (tmp_path / "a.mcap").open("r+b") as file:
            file.truncate(len(data) // 2)
        assert 90 <= sum(1 for _ in messages) <= 110
        assert "of 10 chunks are damaged" in bag.notes[0]


def compressed(folder: Path, storage: str) -> Path:
    return next(f for f in folder.iterdir() if f.name.endswith(f".{storage}.zstd"))


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_compressed_file_of_which_nothing_is_left_is_refused(make_bag: Callable[..., Path], storage: str) -> None:
    folder = make_bag(storage=storage, compression="file")
    file = compressed(folder, {"sqlite3": "db3"}.get(storage, storage))
    plain = zstd.decompress(file.read_bytes())
    file.write_bytes(zstd.compress(plain)[:-20])
    with pytest.raises(RoboCacheError, match=r"its compressed data ends early; 0 bytes of it were recovered; copy it"):
        Bag(folder)


def test_what_is_left_of_a_compressed_file_that_was_cut_is_read_and_it_is_stated(
    panda_lift: Path, tmp_path: Path
) -> None:
    source = next(panda_lift.glob("*.mcap"))
    packed = zstd.compress(source.read_bytes())
    (tmp_path / "a.mcap.zstd").write_bytes(packed[: len(packed) // 2])
    found, notes = read(tmp_path)
    assert 2000 < len(found) < 6456
    assert any("a.mcap.zstd: its compressed data ends early" in note for note in notes)
    assert any(
        f"a.mcap.zstd: has no footer, as after a crash of the recorder; {len(found)} messages" in note for note in notes
    )


def test_rows_that_the_metadata_counts_and_the_table_lacks_are_stated(make_bag: Callable[..., Path]) -> None:
    folder = make_bag(storage="sqlite3")
    with sqlite3.connect(next(folder.glob("*.db3"))) as database:
        database.execute("DELETE FROM messages WHERE id % 10 = 0")
    database.close()
    found, notes = read(folder)
    assert len(found) == 126
    assert notes == ["messages found, of those counted in metadata.yaml: /arm/command 36 of 40, /arm/pose 90 of 100"]


def test_messages_of_no_topic_are_stated(make_bag: Callable[..., Path]) -> None:
    file = next(make_bag(storage="sqlite3").glob("*.db3"))
    with sqlite3.connect(file) as database:
        database.execute("UPDATE messages SET topic_id = 9 WHERE id <= 3")
    database.close()
    found, notes = read(file)
    assert len(found) == 137
    assert notes == [f"{file.name}: 3 of 140 messages belong to no declared topic"]


def test_a_write_ahead_log_that_is_not_read_is_stated(make_bag: Callable[..., Path]) -> None:
    file = next(make_bag(storage="sqlite3").glob("*.db3"))
    file.with_name(f"{file.name}-wal").write_bytes(b"x")
    _, notes = read(file)
    assert f"messages in {file.name}-wal were not read" in notes[0]


def test_a_compressed_message_that_is_damaged_is_stated(make_bag: Callable[..., Path]) -> None:
    folder = make_bag(storage="sqlite3", compression="message")
    with sqlite3.connect(next(folder.glob("*.db3"))) as database:
        database.execute("UPDATE messages SET data = x'00' WHERE id = 5")
    database.close()
    found, notes = read(folder)
    assert len(found) == 139
    assert notes[0].endswith(": 1 messages cannot be decompressed and were not read")


def test_a_view_in_place_of_a_table_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db3") as database:
        database.execute("CREATE TABLE topics (id, name, type, serialization_format)")
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
        database.execute(f"CREATE VIEW messages AS SELECT x AS id, 1 AS topic_id, x AS timestamp FROM ({endless})")
    database.close()
    with pytest.raises(RoboCacheError, match="has no table messages"):
        Bag(tmp_path / "a.db3")


def bomb(declared: int, content: bytes, compression: str = "zstd") -> bytes:
    """A file with one chunk whose head declares a size."""
    head = struct.pack("<QQQI", START_NS, START_NS, declared, zlib.crc32(b"")) + struct.pack("<I", len(compression))
    chunk = head + compression.encode() + struct.pack("<Q", len(content)) + content
    body = mcap.MCAP_MAGIC + mcap.RECORD.pack(mcap.CHUNK, len(chunk)) + chunk
    return (
        body
        + mcap.RECORD.pack(mcap.DATA_END, 4)
        + bytes(4)
        + mcap.RECORD.pack(mcap.FOOTER, 20)
        + bytes(20)
        + mcap.MCAP_MAGIC
    )


@pytest.mark.parametrize("declared", [1000, 1 << 40])
def test_a_chunk_that_inflates_beyond_what_it_declares_is_damaged(
    tmp_path: Path, declared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.mcap").write_bytes(bomb(declared, zstd.compress(bytes(100 << 20))))
    with pytest.raises(RoboCacheError, match="1 of 1 chunks are damaged"):
        Bag(tmp_path / "a.mcap")


def test_no_code_runs_from_the_name_of_a_compression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('the module ran')")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a.mcap").write_bytes(bomb(4, b"abcd", "evil"))
    with pytest.raises(RoboCacheError, match="1 of 1 chunks are damaged"):
        Bag(tmp_path / "a.mcap")
