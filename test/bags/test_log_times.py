"""Log times that are far from all others are left out and stated; a pause is kept."""

import sqlite3

import numpy as np
import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import Group, groups_of, window_of
from robocache_ros.errors import RoboCacheError
from test.fuzz.mcap_writer import McapLayout, write_mcap
from test.fuzz.messages import numbers
from test.fuzz.recordings import MS, START_NS

S = 1000 * MS
HOUR = 3600 * S
TYPES = {"/a": ("std_msgs/msg/Float64MultiArray", "")}
TIMES = [START_NS + 10 * k * MS for k in range(200)]
WRONG = {"0": 0, "1 s": S, "an hour more": TIMES[-1] + HOUR, "a day more": TIMES[-1] + 24 * HOUR, "2^62": 2**62}
LAYOUTS = {"chunks": McapLayout(), "no chunks": McapLayout(chunk_messages=0), "no summary": McapLayout(summary=False)}


def mcap_of(times, layout):
    return write_mcap(TYPES, [("/a", log_ns, numbers(k)) for k, log_ns in enumerate(times)], layout)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("wrong", [*WRONG.values(), 2**64 - 1], ids=[*WRONG, "2^64 - 1"])
def test_one_log_time_far_from_the_others_is_left_out_and_stated(tmp_path, layout, wrong):
    (tmp_path / "a.mcap").write_bytes(mcap_of([*TIMES[:100], wrong, *TIMES[101:]], layout))
    with Bag(tmp_path / "a.mcap") as bag:
        assert (bag.start_ns, bag.stop_ns) == (TIMES[0], TIMES[-1] + 1)
        assert [m.log_ns for m in bag.messages()] == [*TIMES[:100], *TIMES[101:]]
        assert len(bag.notes) == 1
        assert "a.mcap: 1 message is left out: logged at " in bag.notes[0]
        assert bag.notes[0].endswith(", far from all others")


@pytest.mark.parametrize("wrong", [*WRONG.values(), -5], ids=[*WRONG, "negative"])
def test_it_is_the_same_for_sqlite(make_bag, wrong):
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
    (tmp_path / "a.mcap").write_bytes(mcap_of([*TIMES, *after], McapLayout()))
    with Bag(tmp_path / "a.mcap") as bag:
        assert [m.log_ns for m in bag.messages()] == [*TIMES, *after]
        assert bag.notes == []


def test_of_groups_a_day_apart_the_larger_is_kept_and_what_lies_between_kept_ones():
    groups = [Group(0, S, 1000), Group(HOUR, HOUR, 1), Group(2 * HOUR, 2 * HOUR + S, 1000)]
    assert window_of(groups).outside == ()
    window = window_of([Group(0, S, 900), Group(30 * HOUR, 31 * HOUR, 1000)])
    assert (window.start_ns, window.stop_ns) == (30 * HOUR, 31 * HOUR + 1)
    assert window.note == "900 messages are left out: logged at 1970-01-01 00:00:00, far from all others"
    slow = groups_of(np.array([k * HOUR for k in range(10)]))
    assert [group.size for group in slow] == [1] * 10
    assert window_of(slow).outside == ()


def test_no_valid_log_time_at_all_is_refused(tmp_path):
    (tmp_path / "a.mcap").write_bytes(mcap_of([2**63 + k for k in range(30)], McapLayout()))
    with pytest.raises(RoboCacheError, match="none of its messages has a valid log time; record it again"):
        Bag(tmp_path / "a.mcap")
