"""Recordings, read in order, by topics and times, with a thread that reads ahead."""

import sqlite3
import threading
from contextlib import closing

import numpy as np
import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.shared_reading import BATCH_BYTES, read_ahead
from robocache_ros.bags.source import Group, RawMessage, groups_of, is_latched, window_of
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from test.bags.conftest import read
from test.fuzz.mcap_writer import McapLayout, write_mcap
from test.fuzz.messages import numbers
from test.fuzz.recordings import ARRAY, MS, POSE, START_NS, fusion_spec

STORAGES = [("mcap",), ("mcap", "storage"), ("mcap", "message"), ("mcap", "file")]
STORAGES += [("sqlite3",), ("sqlite3", "message"), ("sqlite3", "file")]


@pytest.mark.parametrize("storage", STORAGES, ids="-".join)
def test_every_storage_and_compression_reads_the_same(make_bag, storage):
    options = dict(zip(("storage", "compression"), storage, strict=False))
    folder = make_bag("other", latched=["/arm/pose"], **options)
    file = next(f for f in folder.iterdir() if f.suffix != ".yaml")
    expected, _ = read(make_bag("plain"))
    with Bag(folder) as other:
        assert list(other.messages()) == expected
        assert other.storage == options["storage"]
        assert {t.name: (t.type, t.count, t.latched) for t in other.topics.values()} == {
            "/arm/command": (ARRAY, 40, False),
            "/arm/pose": (POSE, 100, True),
        }
        assert "std_msgs/Header header" in other.definitions[POSE]
    if options.get("compression") not in ("message", "file"):  # without its folder
        assert read(file)[0] == expected


def test_rows_of_an_sqlite_file_in_another_order_come_in_log_order(make_bag):
    (file,) = make_bag(storage="sqlite3").glob("*.db3")
    expected, _ = read(file)
    with closing(sqlite3.connect(file)) as database, database:
        rows = database.execute("SELECT topic_id, timestamp, data FROM messages ORDER BY timestamp DESC").fetchall()
        database.execute("DELETE FROM messages")
        database.execute("DROP INDEX IF EXISTS timestamp_idx")  # which would put them in order
        database.executemany("INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)", rows)
    assert [message.log_ns for message in read(file)[0]] == [message.log_ns for message in expected]


def test_messages_can_be_chosen_by_topic_and_time(make_bag):
    with Bag(make_bag()) as bag:
        start, stop = bag.start_ns + 500_000_000, bag.start_ns + 600_000_000
        expected = [m for m in bag.messages() if m.topic == "/arm/pose" and start <= m.log_ns < stop]
        assert list(bag.messages(["/arm/pose"], start, stop)) == expected
    assert len(expected) == 5


@pytest.mark.parametrize(
    ("profiles", "latched"),
    [
        ("- history: 1\n  depth: 1\n  durability: 1\n  reliability: 1", True),  # Humble
        ("- history: keep_last\n  depth: 1\n  durability: transient_local\n", True),
        ("- durability: volatile\n  depth: 1\n- depth: 1\n  durability: transient_local", True),
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
    with pytest.raises(RoboCacheError, match=message):
        read(tmp_path / name, data)


def test_a_recording_without_messages_or_without_its_file_is_refused(tmp_path):
    bag = write_bag(tmp_path / "bag", {"/a": "std_msgs/msg/Float32"}, [])
    with pytest.raises(RoboCacheError, match="has no messages"):
        Bag(bag)
    next(bag.glob("*.mcap")).unlink()
    with pytest.raises(RoboCacheError, match="missing"):
        Bag(bag)


FLOAT32 = "std_msgs/msg/Float32MultiArray"
TOPIC = "has no topic /arm/poses (did you mean /arm/pose?)"


@pytest.mark.parametrize(
    ("stream", "keys", "parts"),
    [
        ("position", {"topic": "/arm/poses"}, [TOPIC, "it has /arm/command, /arm/pose"]),
        ("command", {"type": FLOAT32}, [f"streams.command.type: {FLOAT32}", f"is {ARRAY}"]),
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


S = 1000 * MS
HOUR = 3600 * S
TIMES = [START_NS + 10 * k * MS for k in range(200)]
WRONG = {"0": 0, "1 s": S, "an hour more": TIMES[-1] + HOUR, "a day more": TIMES[-1] + 24 * HOUR, "2^62": 2**62}
LAYOUTS = {"chunks": McapLayout(), "no chunks": McapLayout(chunk_messages=0), "no summary": McapLayout(summary=False)}


def mcap_of(times, layout):
    return write_mcap({"/a": (ARRAY, "")}, [("/a", log_ns, numbers(k)) for k, log_ns in enumerate(times)], layout)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("wrong", [*WRONG.values(), 2**64 - 1], ids=[*WRONG, "2^64 - 1"])
def test_one_log_time_far_from_the_others_is_left_out_and_stated(tmp_path, layout, wrong):
    (tmp_path / "a.mcap").write_bytes(mcap_of([*TIMES[:100], wrong, *TIMES[101:]], layout))
    with Bag(tmp_path / "a.mcap") as bag:
        assert (bag.start_ns, bag.stop_ns) == (TIMES[0], TIMES[-1] + 1)
        assert [m.log_ns for m in bag.messages()] == [*TIMES[:100], *TIMES[101:]]
        (note,) = bag.notes
    assert "a.mcap: 1 message is left out: logged at " in note
    assert note.endswith(", far from all others")


@pytest.mark.parametrize("wrong", [*WRONG.values(), -5], ids=[*WRONG, "negative"])
def test_one_log_time_far_from_the_others_is_left_out_of_sqlite_too(make_bag, wrong):
    file = next(make_bag(storage="sqlite3").glob("*.db3"))
    with sqlite3.connect(file) as database:
        database.execute(f"UPDATE messages SET timestamp = {wrong} WHERE id = 70")
    database.close()
    with Bag(file) as bag:
        assert len(list(bag.messages())) == 139
        assert bag.stop_ns - bag.start_ns < 3 * S
        assert ["1 message is left out" in note for note in bag.notes] == [True]
        assert wrong != -5 or "logged at -5 ns" in bag.notes[0]


LATE = [[TIMES[-1] + pause + k for k in range(3)] for pause in (S, 300 * S, 1799 * S)]


@pytest.mark.parametrize("after", [*LATE, [t + 5 * HOUR for t in TIMES[:50]]], ids=["1 s", "300 s", "1799 s", "5 h"])
def test_a_pause_of_up_to_half_an_hour_or_before_many_messages_loses_nothing(tmp_path, after):
    found, notes = read(tmp_path / "a.mcap", mcap_of([*TIMES, *after], McapLayout()))
    assert [m.log_ns for m in found] == [*TIMES, *after]
    assert notes == []


def test_of_groups_a_day_apart_the_larger_is_kept_and_what_lies_between_kept_ones():
    assert not window_of([Group(0, S, 1000), Group(HOUR, HOUR, 1), Group(2 * HOUR, 2 * HOUR + S, 1000)]).outside
    window = window_of([Group(0, S, 900), Group(30 * HOUR, 31 * HOUR, 1000)])
    assert (window.start_ns, window.stop_ns) == (30 * HOUR, 31 * HOUR + 1)
    assert window.note == "900 messages are left out: logged at 1970-01-01 00:00:00, far from all others"
    slow = groups_of(np.arange(10) * HOUR)
    assert [group.size for group in slow] == [1] * 10
    assert not window_of(slow).outside


def test_no_valid_log_time_at_all_is_refused(tmp_path):
    with pytest.raises(RoboCacheError, match="none of its messages has a valid log time; record it again"):
        read(tmp_path / "a.mcap", mcap_of([2**63 + k for k in range(30)], McapLayout()))
