import struct

import pytest

from robocache_ros.bags.source import Topic
from robocache_ros.bags.stats import Recorder

MS = 1_000_000
POSE = Topic("/pose", "geometry_msgs/msg/PoseStamped", 0)
ARRAY = Topic("/array", "std_msgs/msg/Float64MultiArray", 0)


def seen(topic, *times_ms, order="<"):
    """Statistics of messages with (header stamp, log time) in ms."""
    recorder = Recorder([topic], {})
    head = b"\0\1\0\0" if order == "<" else b"\0\0\0\0"
    for _ in recorder.watch(
        (topic.name, round(log * MS), head + struct.pack(f"{order}iI", *divmod(round(stamp * MS), 10**9)))
        for stamp, log in times_ms
    ):
        pass
    return recorder.stats()[topic.name]


def at(*times_ms):
    return [(time, time) for time in times_ms]


# Of a second of 13 messages in 13 ms, what is missing is not estimated.
BURSTS = at(*(1000 * burst + k for burst in range(100) for k in range(13)))


@pytest.mark.parametrize(
    ("times", "period_ms", "missing", "gaps", "duplicates", "out_of_order"),
    [
        pytest.param(at(*range(0, 1001, 10)), 10, 0, 0, 0, 0, id="even"),
        pytest.param(at(0, 10, 20, 30, 80, 90, 100), 10, 4, 1, 0, 0, id="a silence"),
        pytest.param(at(0, 10, 20, 40, 50), 10, 1, 0, 0, 0, id="a lost sample"),
        pytest.param(BURSTS, 1, 0, 99, 0, 0, id="bursts"),
        pytest.param([*at(0, 10, 20), (10, 21), (30, 30)], 10, 0, 0, 1, 0, id="a stamp sent twice"),
        pytest.param([(0, 0), (20, 20), (10, 21), (30, 30)], 10, 0, 0, 0, 1, id="behind newer ones"),
        pytest.param([(0, 1)], 0, 0, 0, 0, 0, id="one message"),
    ],
)
def test_gaps_and_what_is_missing_sent_twice_or_out_of_order_are_counted(
    times, period_ms, missing, gaps, duplicates, out_of_order
):
    stats = seen(POSE, *times)
    assert (stats.count, stats.period_ms, stats.missing) == (len(times), period_ms, missing)
    assert (len(stats.gaps), stats.duplicates, stats.out_of_order) == (gaps, duplicates, out_of_order)
    if missing == 4:
        assert [(gap.start_ns, gap.length_ns) for gap in stats.gaps] == [(30 * MS, 50 * MS)]
    assert missing or gaps or duplicates or out_of_order or stats.rate_hz == pytest.approx(100 if period_ms else 0)


@pytest.mark.parametrize("order", ["<", ">"])
def test_delay_is_log_time_less_header_stamp_in_each_byte_order(order):
    stats = seen(POSE, (0, 3), (10, 15), (1020, 1024), order=order)
    assert stats.delays_ms.tolist() == [3, 5, 4]
    assert stats.delay_ms(1.0) == 5


def test_a_type_without_a_header_goes_by_receive_times():
    stats = seen(ARRAY, (777, 0), (777, 50), (777, 100))
    assert (stats.stamped, stats.period_ms, len(stats.delays_ms)) == (False, 50, 0)


def test_a_message_too_short_for_a_stamp_is_left_out_of_the_times():
    recorder = Recorder([POSE], {})
    list(recorder.watch([("/pose", 5, b"\0\1\0\0\1"), ("/pose", 6, b"\0\1\0\0" + bytes(8))]))
    assert recorder.stats()["/pose"].delays_ms.tolist() == [6e-6]
