"""Damaged and cut files: each is read or refused in one line, and what is lost is stated in the notes."""

import shutil
import sqlite3
import struct

import pytest
from rosbags.rosbag2.writer import zstd

from robocache_ros.bags.reader import CHECKED, UNCHECKED, Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.storage import mcap
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from test.bags.conftest import read
from test.fuzz.mcap_writer import McapLayout, write_bomb, write_mcap
from test.fuzz.messages import numbers, pose
from test.fuzz.recordings import MS, START_NS
from test.fuzz.recordings import TYPES as ARM


def test_without_metadata_the_files_are_read_and_it_says_so(make_bag):
    folder = make_bag()
    (folder / "metadata.yaml").unlink()
    with Bag(folder) as bag:
        assert len(list(bag.messages())) == 140
        assert "no metadata.yaml" in bag.notes[0]


def test_a_cut_mcap_is_read_up_to_its_cut_and_it_says_so(panda_lift, tmp_path):
    whole = next(panda_lift.glob("*.mcap")).read_bytes()
    with Bag(panda_lift) as bag:
        complete, types = list(bag.messages()), {t.name: t.type for t in bag.topics.values()}
    (tmp_path / "cut.mcap").write_bytes(whole[: len(whole) // 2])
    with Bag(tmp_path / "cut.mcap") as cut:
        kept = list(cut.messages())
        assert kept == complete[: len(kept)]
        assert len(kept) > 2000
        assert f"{len(kept)} messages were recovered" in cut.notes[0]
        assert {t.name: t.type for t in cut.topics.values()} == types
    packed = zstd.compress(whole)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "a.mcap.zstd").write_bytes(packed[: len(packed) // 2])
    kept, notes = read(tmp_path / "packed")
    assert 2000 < len(kept) < len(complete)
    assert any("a.mcap.zstd: its compressed data ends early" in note for note in notes)
    lost = f"a.mcap.zstd: has no footer, as after a crash of the recorder; {len(kept)} messages"
    assert any(lost in note for note in notes)
    (tmp_path / "bag").mkdir()
    shutil.copy(panda_lift / "metadata.yaml", tmp_path / "bag")
    (tmp_path / "bag" / next(panda_lift.glob("*.mcap")).name).write_bytes(whole[:-5000])
    with Bag(tmp_path / "bag") as bag:
        assert len(list(bag.messages())) == 6456
    for size in (4, 8, 30, 500):
        (tmp_path / "cut.mcap").write_bytes(whole[:size])
        with pytest.raises(RoboCacheError, match=r"truncated before its first complete message|not an MCAP file"):
            Bag(tmp_path / "cut.mcap")


@pytest.mark.parametrize("left", [50, 9000, -1, -4092, -4095, -4096])
def test_a_cut_sqlite_recording_is_refused_and_not_read_as_empty(make_bag, tmp_path, left):
    data = next(make_bag(storage="sqlite3").glob("*.db3")).read_bytes()
    (tmp_path / "cut.db3").write_bytes(data[:left])
    cut = rf"truncated to [\d,]+ of {len(data):,} bytes; .* \.recover"
    why = "cannot be read, it is damaged or truncated" if left == 50 else cut
    with pytest.raises(RoboCacheError, match=rf"cut\.db3: {why}"):
        Bag(tmp_path / "cut.db3")


TYPES = {"/a": ("std_msgs/msg/Float64MultiArray", ""), "/b": ("std_msgs/msg/Float64MultiArray", "")}
MESSAGES = [("/a" if k % 3 else "/b", START_NS + 10 * k * MS, numbers(k, k)) for k in range(200)]


def places(data, op):
    """Start and stop of the content of each record of a kind."""
    return [(start, stop) for kind, start, stop in mcap.records(bytes(data), len(mcap.MCAP_MAGIC)) if kind == op]


LAYOUTS = {
    "no chunks": McapLayout(chunk_messages=0),
    "no checksums": McapLayout(checksums=False),
    "no message indexes": McapLayout(message_indexes=False),
    "half outside of chunks": McapLayout(loose_every=2),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_complete_file_is_read_without_a_note(tmp_path, layout):
    found, notes = read(tmp_path / "a.mcap", write_mcap(TYPES, MESSAGES, layout))
    assert found == MESSAGES
    assert notes == []


DAMAGED = "a.mcap: 1 of 10 chunks are damaged; 20 of 200 messages could not be read"


@pytest.mark.parametrize("summary", [True, False])
def test_a_chunk_that_is_damaged_is_counted(tmp_path, summary):
    intact = write_mcap(TYPES, MESSAGES, McapLayout(summary=summary))
    data, chunks = bytearray(intact), places(intact, mcap.CHUNK)
    data[sum(chunks[3]) // 2] ^= 1  # which its checksum does not match
    assert read(tmp_path / "a.mcap", data) == (MESSAGES[:60] + MESSAGES[80:], [DAMAGED])
    with Bag(tmp_path / "a.mcap") as bag:  # once, however often it is read
        assert [len(list(bag.messages())) for _ in range(2)] == [180, 180]
        assert bag.notes == [DAMAGED]

    data, start = bytearray(intact), chunks[4][0]
    data[start - 9 : start + 40] = bytes(49)  # its head
    found, notes = read(tmp_path / "a.mcap", data)
    if summary:
        assert (found, notes) == (MESSAGES[:80] + MESSAGES[100:], [DAMAGED])
    else:
        assert found == MESSAGES[:80]
        assert notes[0].startswith(f"a.mcap: is damaged at byte {start - 9:,}; 80 messages were recovered")


def test_a_summary_that_does_not_match_its_checksum_is_not_believed(tmp_path):
    data = bytearray(write_mcap(TYPES, MESSAGES))
    start, _ = places(data, mcap.CHUNK_INDEX)[0]
    struct.pack_into("<Q", data, start, 0)
    found, notes = read(tmp_path / "a.mcap", data)
    assert found == MESSAGES
    assert notes == ["a.mcap: its summary is damaged, so its records were read one by one"]


def test_an_index_that_leaves_chunks_out_or_repeats_one_does_not_hide_any(tmp_path):
    data = write_mcap(TYPES, MESSAGES, McapLayout(checksums=False))
    (start, stop), (second, _), *_ = places(data, mcap.CHUNK_INDEX)
    assert read(tmp_path / "a.mcap", data[: start - 9] + data[stop:])[0] == MESSAGES
    repeated = data[: second + 16] + data[start + 16 : start + 24] + data[second + 24 :]
    assert read(tmp_path / "a.mcap", repeated)[0] == MESSAGES


def test_damage_between_chunks_is_stated(tmp_path):
    data = bytearray(write_mcap(TYPES, MESSAGES, LAYOUTS["half outside of chunks"]))
    start, _ = places(data, mcap.MESSAGE)[7]
    data[start - 8 : start] = b"\xff" * 8
    found, notes = read(tmp_path / "a.mcap", data)
    assert set(found) < set(map(RawMessage._make, MESSAGES))
    assert any("bytes between its chunks are damaged and were not read" in note for note in notes)


def test_each_page_of_an_sqlite_recording_that_is_damaged_is_refused(tmp_path):
    messages = [("/arm/pose", START_NS + 20 * k * MS, pose(START_NS + 20 * k * MS)) for k in range(400)]
    data = next(write_bag(tmp_path / "bag", ARM, messages, storage="sqlite3").glob("*.db3")).read_bytes()
    pages = range(4096, len(data), 4096)
    refused = []
    for page in pages:
        try:
            assert len(read(tmp_path / "c.db3", data[:page] + b"\xff" * 100 + data[page + 100 :])[0]) == 400
        except RoboCacheError as error:
            refused.append("c.db3: cannot be read, it is damaged or truncated" in str(error))
    assert all(refused)
    assert len(refused) > 0.7 * len(pages)  # the others have no messages


@pytest.mark.parametrize("where", ["no chunks", "half outside of chunks"])
def test_an_altered_message_outside_of_chunks_is_stated(tmp_path, where):
    data = bytearray(write_mcap(TYPES, MESSAGES, LAYOUTS[where]))
    _, stop = places(data, mcap.MESSAGE)[7]
    data[stop - 1] ^= 1
    _, notes = read(tmp_path / "a.mcap", data)
    assert notes == ["a.mcap: the checksum of its data does not match; some messages may be altered"]


def test_statistics_that_promise_more_are_stated(tmp_path):
    data = bytearray(write_mcap(TYPES, MESSAGES, McapLayout(checksums=False)))
    start, stop = places(data, mcap.STATISTICS)[0]
    struct.pack_into("<Q", data, start, 210)
    struct.pack_into("<Q", data, stop - 8, 77)
    found, notes = read(tmp_path / "a.mcap", data)
    assert len(found) == 200
    assert notes == ["a.mcap: 200 of 210 messages of the selected topics were found"]


def test_a_file_that_becomes_shorter_while_it_is_read_is_damaged(tmp_path):
    data = write_mcap(TYPES, [(t, ns, numbers(*range(4000))) for t, ns, _ in MESSAGES])
    (tmp_path / "a.mcap").write_bytes(data)
    with Bag(tmp_path / "a.mcap") as bag:
        messages = bag.messages()
        next(messages)
        with (tmp_path / "a.mcap").open("r+b") as file:
            file.truncate(len(data) // 2)
        assert 90 <= sum(1 for _ in messages) <= 110
        assert "of 10 chunks are damaged" in bag.notes[0]


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_compressed_file_of_which_nothing_is_left_is_refused(make_bag, storage):
    folder = make_bag(storage=storage, compression="file")
    (file,) = folder.glob("*.zstd")
    file.write_bytes(zstd.compress(zstd.decompress(file.read_bytes()))[:-20])
    with pytest.raises(RoboCacheError, match=r"its compressed data ends early; 0 bytes of it were recovered; copy it"):
        Bag(folder)


def changed(file, statement):
    with sqlite3.connect(file) as database:
        database.execute(statement)
    database.close()


def test_rows_that_are_missing_and_those_of_no_topic_are_stated(make_bag):
    folder = make_bag(storage="sqlite3")
    (file,) = folder.glob("*.db3")
    changed(file, "DELETE FROM messages WHERE id % 10 = 0")
    found, notes = read(folder)
    assert len(found) == 126
    assert notes == ["messages found, of those counted in metadata.yaml: /arm/command 36 of 40, /arm/pose 90 of 100"]
    changed(file, "UPDATE messages SET topic_id = 9 WHERE id <= 3")
    found, notes = read(file)
    assert len(found) == 123
    assert notes == [f"{file.name}: 3 of 126 messages belong to no declared topic"]
    file.with_name(f"{file.name}-wal").write_bytes(b"x")
    assert f"messages in {file.name}-wal were not read" in read(file)[1][0]


def test_a_view_in_place_of_a_table_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "a.db3") as database:
        database.execute("CREATE TABLE topics (id, name, type, serialization_format)")
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
        database.execute(f"CREATE VIEW messages AS SELECT x AS id, 1 AS topic_id, x AS timestamp FROM ({endless})")
    database.close()
    with pytest.raises(RoboCacheError, match="has no table messages"):
        Bag(tmp_path / "a.db3")


@pytest.mark.parametrize("declared", [1000, 1 << 40])
def test_a_chunk_that_inflates_beyond_what_it_declares_is_damaged(tmp_path, declared):
    (tmp_path / "a.mcap").write_bytes(write_bomb(declared, zstd.compress(bytes(100 << 20))))
    with pytest.raises(RoboCacheError, match="1 of 1 chunks are damaged"):
        Bag(tmp_path / "a.mcap")


def test_no_code_runs_from_the_name_of_a_compression(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('the module ran')")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a.mcap").write_bytes(write_bomb(4, b"abcd", "evil"))
    with pytest.raises(RoboCacheError, match="1 of 1 chunks are damaged"):
        Bag(tmp_path / "a.mcap")


@pytest.mark.parametrize("compression", ["none", "storage"])
def test_a_recording_with_checksums_has_the_same_messages_and_detects_one_that_is_altered(make_bag, compression):
    file = next(make_bag(compression=compression).glob("*.mcap"))
    with Bag(file) as bag:
        assert bag.integrity == UNCHECKED
        before = list(bag.messages())
    mcap.add_checksums(file)
    with Bag(file) as bag:
        assert bag.integrity == CHECKED
        assert list(bag.messages()) == before
    data = bytearray(file.read_bytes())
    data[sum(places(data, mcap.CHUNK)[0]) // 2] ^= 1
    found, notes = read(file, data)
    assert found == []
    assert any("1 of 1 chunks are damaged" in note for note in notes)


@pytest.mark.parametrize("count", [30, 3000])  # of messages in the chunk: few are read in another way than many
@pytest.mark.parametrize("altered", ["index", "message"])
def test_a_chunk_without_checksum_is_damaged_if_a_message_differs_from_its_index(tmp_path, count, altered):
    messages = [("/text", 10**9 + k, b"\0\1\0\0" + b"\5\0\0\0" + b"abcd\0") for k in range(count)]
    path = write_bag(tmp_path / "bag", {"/text": "std_msgs/msg/String"}, messages)
    file, wanted = path / "bag.mcap", struct.pack("<Q", 10**9 + count // 2)
    assert len(read(path)[0]) == count
    content = file.read_bytes()
    at = content.index(wanted) if altered == "message" else content.rindex(wanted)
    found, notes = read(file, content[:at] + struct.pack("<Q", 10**9 + count) + content[at + 8 :])
    assert found == []
    assert any("1 of 1 chunks are damaged" in note for note in notes)
