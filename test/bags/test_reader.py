"""Recordings, read in order, by topics and times, with a thread that reads ahead."""

import sqlite3
import threading
from contextlib import closing

import pytest

from robocache_ros.bags.reader import Bag, open_storage
from robocache_ros.bags.shared_reading import BATCH_BYTES, read_ahead
from robocache_ros.bags.source import RawMessage, is_latched
from robocache_ros.bags.storage.merge import merged_messages
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from test.fuzz.mcap_writer import McapLayout, write_mcap
from test.fuzz.messages import numbers
from test.fuzz.recordings import ARRAY, START_NS, fusion_spec

STORAGES = [
    {"storage": "mcap"},
    {"storage": "mcap", "compression": "storage"},
    {"storage": "mcap", "compression": "message"},
    {"storage": "mcap", "compression": "file"},
    {"storage": "sqlite3"},
    {"storage": "sqlite3", "compression": "message"},
    {"storage": "sqlite3", "compression": "file"},
]


@pytest.mark.parametrize("options", STORAGES, ids=lambda o: "-".join(o.values()))
def test_every_storage_and_compression_reads_the_same(make_bag, options):
    folder = make_bag("other", latched=["/arm/pose"], **options)
    file = next(f for f in folder.iterdir() if f.suffix != ".yaml")
    with Bag(make_bag("plain")) as plain, Bag(folder) as other:
        expected = list(plain.messages())
        assert list(other.messages()) == expected
        assert other.storage == options["storage"]
        assert {t.name: (t.type, t.count, t.latched) for t in other.topics.values()} == {
            "/arm/command": ("std_msgs/msg/Float64MultiArray", 40, False),
            "/arm/pose": ("geometry_msgs/msg/PoseStamped", 100, True),
        }
        assert "std_msgs/Header header" in other.definitions["geometry_msgs/msg/PoseStamped"]
    if options.get("compression") not in ("message", "file"):  # without its folder
        with Bag(file) as bare:
            assert list(bare.messages()) == expected


def test_rows_of_an_sqlite_file_in_another_order_come_in_log_order(make_bag):
    (file,) = make_bag(storage="sqlite3").glob("*.db3")
    with Bag(file) as bag:
        expected = list(bag.messages())
    with closing(sqlite3.connect(file)) as database, database:
        rows = database.execute("SELECT topic_id, timestamp, data FROM messages ORDER BY timestamp DESC").fetchall()
        database.execute("DELETE FROM messages")
        database.execute("DROP INDEX IF EXISTS timestamp_idx")  # which would put them in order
        database.executemany("INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)", rows)

    with Bag(file) as bag:
        assert [message.log_ns for message in bag.messages()] == [message.log_ns for message in expected]


def test_messages_of_one_log_time_are_in_the_order_of_their_files(tmp_path):
    files = [
        next(write_bag(tmp_path / name, {"/a": ARRAY}, [("/a", START_NS, numbers(value))])
             .glob("*.mcap"))
        for name, value in (("first", 1.0), ("second", 2.0))
    ]  # fmt: skip
    sources = [open_storage(file) for file in files]

    merged = [message.data for message in merged_messages(sources, {"/a"}, 0, 2 * START_NS)]

    assert merged == [numbers(1.0), numbers(2.0)]


def test_messages_can_be_chosen_by_topic_and_time(make_bag):
    with Bag(make_bag()) as bag:
        start = bag.start_ns + 500_000_000
        selected = list(bag.messages(["/arm/pose"], start, start + 100_000_000))
    assert {message.topic for message in selected} == {"/arm/pose"}
    assert len(selected) == 5
    assert all(start <= message.log_ns < start + 100_000_000 for message in selected)


@pytest.mark.parametrize(
    ("profiles", "latched"),
    [
        ("- history: 1\n  depth: 1\n  durability: 1\n  reliability: 1", True),  # Humble
        ("- history: keep_last\n  depth: 1\n  durability: transient_local\n", True),
        (
            "- durability: volatile\n  reliability: reliable\n- reliability: reliable\n  durability: transient_local",
            True,
        ),
        ("- history: 3\n  durability: 2\n  lifespan:\n    sec: 1\n    nsec: 1", False),
        ("- durability: volatile", False),
        ("", False),
    ],
)
def test_durability_is_read_as_every_distribution_writes_it(profiles, latched):
    assert is_latched(profiles) == latched


def test_messages_are_those_that_rosbags_reads(panda_lift):
    from rosbags.rosbag2 import Reader

    with Reader(panda_lift) as theirs, Bag(panda_lift) as ours:
        wanted = [(connection.topic, log_ns, data) for connection, log_ns, data in theirs.messages()]
        assert list(ours.messages()) == wanted == sorted(wanted, key=lambda message: message[1])
        assert len(wanted) == 6456
        assert {t.name: t.count for t in ours.topics.values()} == {c.topic: c.msgcount for c in theirs.connections}


def test_an_mcap_without_chunks_or_index_is_read(tmp_path):
    messages = [("/a", log_ns, numbers(log_ns)) for log_ns in (30, 10, 20)]
    layout = McapLayout(chunk_messages=0, summary=False)
    (tmp_path / "a.mcap").write_bytes(write_mcap({"/a": (ARRAY, "")}, messages, layout))
    with Bag(tmp_path / "a.mcap") as bag:
        assert [message.log_ns for message in bag.messages()] == [10, 20, 30]
        assert bag.topics["/a"].count == 3
        assert bag.notes == []


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("no", None, "no: no such recording"),
        (".", None, "not a recording, it has no"),
        ("notes.txt", b"x", r"neither a rosbag2 folder nor a \.mcap, \.db3 or \.bag file"),
        ("a.mcap", b"", "empty; record it again"),
        ("a.db3", b"", "empty; record it again"),
        ("a.mcap", b"\x07" * 4096, r"a\.mcap"),
        ("a.db3", b"\x07" * 4096, r"a\.db3"),
    ],
)
def test_what_is_not_a_recording_is_refused(tmp_path, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(RoboCacheError, match=message):
        Bag(tmp_path / name)


def test_a_recording_without_messages_or_without_its_file_is_refused(tmp_path):
    bag = write_bag(tmp_path / "bag", {"/a": "std_msgs/msg/Float32"}, [])
    with pytest.raises(RoboCacheError, match="has no messages"):
        Bag(bag)
    next(bag.glob("*.mcap")).unlink()
    with pytest.raises(RoboCacheError, match="missing"):
        Bag(bag)


@pytest.mark.parametrize(
    ("stream", "keys", "parts"),
    [
        (
            "position",
            {"topic": "/arm/poses"},
            ["has no topic /arm/poses (did you mean /arm/pose?)", "it has /arm/command, /arm/pose"],
        ),
        (
            "command",
            {"type": "std_msgs/msg/Float32MultiArray"},
            ["streams.command.type: std_msgs/msg/Float32MultiArray", "is std_msgs/msg/Float64MultiArray"],
        ),
    ],
)
def test_a_topic_or_a_type_that_differs_is_named(make_bag, stream, keys, parts):
    spec = fusion_spec().to_dict()
    spec["streams"][stream] |= keys
    with Bag(make_bag()) as bag, pytest.raises(RoboCacheError) as caught:
        bag.require(load_spec(spec))
    assert [part for part in parts if part not in str(caught.value)] == []


def messages(count, size=10):
    return (RawMessage("/a", k, bytes(size)) for k in range(count))


@pytest.mark.parametrize(("count", "size"), [(5000, 10), (40, BATCH_BYTES // 3)])
def test_messages_come_in_order(count, size):
    assert [message.log_ns for message in read_ahead(messages(count, size))] == list(range(count))


def test_an_error_comes_where_it_happened():
    def failing():
        yield from messages(3)
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        list(read_ahead(failing()))


def test_the_thread_ends_when_the_messages_are_left():
    before = set(threading.enumerate())
    ahead = read_ahead(messages(100_000, 1000))
    next(ahead)
    ahead.close()
    assert set(threading.enumerate()) <= before
