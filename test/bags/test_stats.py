from __future__ import annotations

import struct
from pathlib import Path

import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import Topic
from robocache_ros.bags.stats import Recorder, TopicStats

MS = 1_000_000
POSE = Topic("/pose", "geometry_msgs/msg/PoseStamped", 0)
ARRAY = Topic("/array", "std_msgs/msg/Float64MultiArray", 0)


def seen(topic: Topic, *times_ms: tuple[float, float], order: str = "<") -> TopicStats:
    """Statistics of messages with (header stamp, log time) in ms."""
    recorder = Recorder([topic], {})
    head = b"\0\1\0\0" if order == "<" else b"\0\0\0\0"
    for _ in recorder.watch(
        (topic.name, round(log * MS), head + struct.pack(f"{order}iI", *divmod(round(stamp * MS), 10**9)))
        for stamp, log in times_ms
    ):
        pass
    return recorder.stats()[topic.name]


def test_rate_and_period_of_an_even_topic() -> None:
    stats = seen(POSE, *((10 * k, 10 * k + 1) for k in range(101)))
    assert stats.rate_hz == pytest.approx(100)
    assert stats.period_ms == 10
    assert (stats.missing, stats.gaps, stats.duplicates, stats.out_of_order) == (0, (), 0, 0)


def test_delay_is_log_time_less_header_stamp() -> None:
    stats = seen(POSE, (0, 3), (10, 15), (20, 24))
    assert stats.delays_ms.tolist() == [3, 5, 4]
    assert stats.delay_ms(1.0) == 5


def test_big_endian_stamps_are_read() -> None:
    assert seen(POSE, (0, 3), (1010, 1015), order=">").delays_ms.tolist() == [3, 5]


def test_a_silence_is_a_gap_and_counts_what_is_missing() -> None:
    stats = seen(POSE, *((t, t) for t in [0, 10, 20, 30, 80, 90, 100]))
    assert [(gap.start_ns, gap.length_ns) for gap in stats.gaps] == [(30 * MS, 50 * MS)]
    assert stats.missing == 4


def test_bursts_have_gaps_and_no_estimate_of_what_is_missing() -> None:
    times = [1000 * burst + k for burst in range(100) for k in range(13)]  # 13 messages in 13 ms, each second
    stats = seen(POSE, *((t, t) for t in times))
    assert (stats.count, stats.missing, len(stats.gaps)) == (1300, 0, 99)


def test_a_single_lost_sample_is_missing_and_no_gap() -> None:
    stats = seen(POSE, *((t, t) for t in [0, 10, 20, 40, 50]))
    assert (stats.missing, stats.gaps) == (1, ())


def test_a_stamp_sent_twice_is_a_duplicate_and_not_out_of_order() -> None:
    stats = seen(POSE, (0, 0), (10, 10), (20, 20), (10, 21), (30, 30))
    assert (stats.duplicates, stats.out_of_order) == (1, 0)


def test_a_message_behind_newer_ones_is_out_of_order() -> None:
    stats = seen(POSE, (0, 0), (20, 20), (10, 21), (30, 30))
    assert (stats.duplicates, stats.out_of_order) == (0, 1)
    assert stats.period_ms == 10


def test_a_type_without_a_header_goes_by_receive_times() -> None:
    stats = seen(ARRAY, (777, 0), (777, 50), (777, 100))
    assert not stats.stamped
    assert stats.period_ms == 50
    assert len(stats.delays_ms) == 0


def test_a_message_too_short_for_a_stamp_is_left_out_of_the_times() -> None:
    recorder = Recorder([POSE], {})
    list(recorder.watch([("/pose", 5, b"\0\1\0\0\1"), ("/pose", 6, b"\0\1\0\0" + bytes(8))]))
    assert recorder.stats()["/pose"].delays_ms.tolist() == [6e-6]


def test_one_message_has_no_rate() -> None:
    stats = seen(POSE, (0, 1))
    assert (stats.rate_hz, stats.period_ms, stats.missing) == (0, 0, 0)


def test_the_faults_that_were_put_into_panda_lift_are_found(panda_lift: Path) -> None:
    with Bag(panda_lift) as bag:
        recorder = Recorder(bag.topics.values(), bag.definitions)
        list(recorder.watch(bag.messages()))
        topics = recorder.stats()
        start_ns = bag.start_ns
    joints = topics["/panda/joint_states"]
    assert [(round((g.start_ns - start_ns) / 1e9, 2), round(g.length_ns / 1e6)) for g in joints.gaps] == [(4.05, 152)]
    assert joints.duplicates == 4437 // 401  # every 401st is sent twice
    assert joints.out_of_order == 4437 // 613  # every 613th is logged behind newer ones
    assert topics["/camera/front/image_raw/compressed"].missing == 6
    assert topics["/camera/front/image_raw/compressed"].delay_ms(0.5) == pytest.approx(38, abs=1)
    assert topics["/camera/front/points"].delay_ms(0.5) == pytest.approx(55, abs=1)
