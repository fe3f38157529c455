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
from test.fuzz.recordings import ARRAY, MS, START_NS
from test.fuzz.recordings import TYPES as ARM


def test_without_metadata_the_files_are_read_and_a_note_names_the_folder_also_from_within(make_bag, monkeypatch):
    folder = make_bag("lift")
    (folder / "metadata.yaml").unlink()
    monkeypatch.chdir(folder)
    for path in (folder, "."):
        found, notes = read(path)
        assert len(found) == 140
        assert notes == ["lift: has no metadata.yaml, as after a crash of the recorder; its files were read"]


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
    lost = f"a.mcap.zstd: has no footer, as after a crash of the recorder; {len(kept)} messages"
    for text in ("a.mcap.zstd: its compressed data ends early", lost):
        assert text in "\n".join(notes)
    (tmp_path / "bag").mkdir()
    shutil.copy(panda_lift / "metadata.yaml", tmp_path / "bag")
    (tmp_path / "bag" / next(panda_lift.glob("*.mcap")).name).write_bytes(whole[:-5000])
    assert len(read(tmp_path / "bag")[0]) == 6456
    for size in (4, 8, 30, 500):
        with pytest.raises(RoboCacheError, match=r"truncated before its first complete message|not an MCAP file"):
            read(tmp_path / "cut.mcap", whole[:size])


@pytest.mark.parametrize("left", [50, 9000, -1, -4092, -4095, -4096])
def test_a_cut_sqlite_recording_is_refused_and_not_read_as_empty(make_bag, tmp_path, left):
    data = next(make_bag(storage="sqlite3").glob("*.db3")).read_bytes()
    cut = rf"truncated to [\d,]+ of {len(data):,} bytes; .* \.recover"
    why = "cannot be read, it is damaged or truncated" if left == 50 else cut
    with pytest.raises(RoboCacheError, match=rf"cut\.db3: {why}"):
        read(tmp_path / "cut.db3", data[:left])


TYPES = dict.fromkeys(("/a", "/b"), (ARRAY, ""))
MESSAGES = [("/a" if k % 3 else "/b", START_NS + 10 * k * MS, numbers(k, k)) for k in range(200)]


def places(data, op):
    """Start and stop of the content of each record of a kind."""
    return [(start, stop) for kind, start, stop in mcap.records(bytes(data), len(mcap.MCAP_MAGIC)) if kind == op]


LAYOUTS = {
    "no chunks": McapLayout(chunk_messages=0),
    "neither chunks nor a summary": McapLayout(chunk_messages=0, summary=False),
    "no checksums": McapLayout(checksums=False),
    "no message indexes": McapLayout(message_indexes=False),
    "half outside of chunks": McapLayout(loose_every=2),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("step", [1, -1])
def test_a_complete_file_is_read_in_log_order_without_a_note(tmp_path, layout, step):
    (tmp_path / "a.mcap").write_bytes(write_mcap(TYPES, MESSAGES[::step], layout))
    with Bag(tmp_path / "a.mcap") as bag:
        assert list(bag.messages()) == MESSAGES
        assert {name: topic.count for name, topic in bag.topics.items()} == {"/a": 133, "/b": 67}
        assert bag.notes == []


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


PROMISED = "200 of 210 messages of the selected topics were found"
ALTERED = "the checksum of its data does not match; some messages may be altered"


@pytest.mark.parametrize(
    ("layout", "op", "values", "note"),  # at places from the start or, if negative, from the end of a record
    [
        (McapLayout(), mcap.CHUNK_INDEX, {0: 0}, "its summary is damaged, so its records were read one by one"),
        (LAYOUTS["no checksums"], mcap.STATISTICS, {0: 210, -8: 77}, PROMISED),
        (LAYOUTS["no chunks"], mcap.MESSAGE, {-8: 1}, ALTERED),
        (LAYOUTS["half outside of chunks"], mcap.MESSAGE, {-8: 1}, ALTERED),
    ],
    ids=["checksum of the summary", "statistics that promise more", "message", "message beside chunks"],
)
def test_an_altered_record_outside_of_chunks_is_stated(tmp_path, layout, op, values, note):
    data = bytearray(write_mcap(TYPES, MESSAGES, layout))
    start, stop = places(data, op)[7 if op == mcap.MESSAGE else 0]
    for place, value in values.items():
        struct.pack_into("<Q", data, place + (start if place >= 0 else stop), value)
    found, notes = read(tmp_path / "a.mcap", data)
    assert notes == [f"a.mcap: {note}"]
    assert (found == MESSAGES) == (op != mcap.MESSAGE)


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


def changed(file, statements):
    with sqlite3.connect(file) as database:
        database.executescript(statements)
    database.close()


def test_rows_that_are_missing_of_no_topic_or_no_messages_are_stated(make_bag):
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
    file.with_name(f"{file.name}-wal").unlink()
    changed(
        file,
        "CREATE TABLE rows(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB);"  # without NOT NULL
        "INSERT INTO rows SELECT * FROM messages WHERE topic_id < 9;"
        "DROP TABLE messages; ALTER TABLE rows RENAME TO messages;"
        "UPDATE messages SET data = NULL WHERE id = 11; UPDATE messages SET data = 5 WHERE id = 21;"
        "UPDATE messages SET data = 'text' WHERE id = 31",
    )
    found, notes = read(file)
    assert len(found) == 120
    assert notes == [f"{file.name}: 3 rows are not messages and were not read"]


def test_a_view_in_place_of_a_table_is_refused(tmp_path):
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
    view = f"CREATE VIEW messages AS SELECT x AS id, 1 AS topic_id, x AS timestamp FROM ({endless})"
    changed(tmp_path / "a.db3", f"CREATE TABLE topics (id, name, type, serialization_format); {view}")
    with pytest.raises(RoboCacheError, match="has no table messages"):
        Bag(tmp_path / "a.db3")


@pytest.mark.parametrize(("declared", "compression"), [(1000, "zstd"), (1 << 40, "zstd"), (4, "evil")])
def test_a_chunk_that_inflates_beyond_its_size_is_damaged_and_no_code_runs_from_the_name_of_a_compression(
    tmp_path, monkeypatch, declared, compression
):
    (tmp_path / "evil.py").write_text("raise SystemExit('the module ran')")
    monkeypatch.syspath_prepend(tmp_path)
    content = b"abcd" if compression == "evil" else zstd.compress(bytes(100 << 20))
    with pytest.raises(RoboCacheError, match="1 of 1 chunks are damaged"):
        read(tmp_path / "a.mcap", write_bomb(declared, content, compression))


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
    assert "1 of 1 chunks are damaged" in "\n".join(notes)


@pytest.mark.parametrize("count", [30, 3000])  # of messages in the chunk: few are read in another way than many
@pytest.mark.parametrize("altered", ["index", "message"])
def test_a_chunk_without_checksum_is_damaged_if_a_message_differs_from_its_index(tmp_path, count, altered):
    messages = [("/text", 10**9 + k, b"\0\1\0\0" + b"\5\0\0\0" + b"abcd\0") for k in range(count)]
    path = write_bag(tmp_path / "bag", {"/text": "std_msgs/msg/String"}, messages)
    assert len(read(path)[0]) == count
    content, wanted = (path / "bag.mcap").read_bytes(), struct.pack("<Q", 10**9 + count // 2)
    at = content.index(wanted) if altered == "message" else content.rindex(wanted)
    found, notes = read(path / "bag.mcap", content[:at] + struct.pack("<Q", 10**9 + count) + content[at + 8 :])
    assert found == []
    assert "1 of 1 chunks are damaged" in "\n".join(notes)
