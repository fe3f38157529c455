"""The timeline by stamps and log times, with the traits of simulators, replays and devices."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from robocache_ros.bags.clocks import Timeline, Times, jumps, timeline_of
from test.bags.clocks.conftest import S, TimeOf, looped, paused, simulated, since_boot, wall
from test.bags.conftest import MS, START_NS


def times(
    time_of: TimeOf, seconds: float = 20, rate_hz: int = 50, seed: int = 0, paused_ns: tuple[int, int] = (0, 0)
) -> Times:
    """Messages logged 2 to 12 ms after their stamp; none while the clock pauses."""
    rng = np.random.default_rng(seed)
    logs = START_NS + np.arange(round(seconds * rate_hz)) * (S // rate_hz)
    logs = logs[(logs < START_NS + paused_ns[0]) | (logs >= START_NS + paused_ns[1])]
    stamps = np.array([time_of(log) for log in logs.tolist()], np.int64)
    return Times(logs + rng.integers(2 * MS, 12 * MS, len(logs)), stamps)


def error_ms(timeline: Timeline, time_of: TimeOf, logs: Iterable[int]) -> np.ndarray:
    """By how much the timeline is off, where the fastest messages take 2 ms."""
    return np.array([(timeline.at(log + 2 * MS) - time_of(log)) / MS for log in logs])


EVERY = range(START_NS + S, START_NS + 19 * S, 37 * MS)


def test_stamps_on_the_clock_of_the_log_change_nothing() -> None:
    timeline = timeline_of({"/a": times(wall), "/b": times(wall, seed=1)})
    assert timeline == Timeline()
    assert timeline.at(START_NS + 5) == START_NS + 5
    assert timeline.note == ""


@pytest.mark.parametrize("time_of", [simulated, since_boot])
def test_offset_and_skew_are_those_of_the_fastest_messages(time_of: TimeOf) -> None:
    timeline = timeline_of({"/a": times(time_of), "/b": times(time_of, seed=1)})

    assert (timeline.source, timeline.topics) == ("stamps", ("/a", "/b"))
    assert np.abs(error_ms(timeline, time_of, EVERY)).max() < 1.0
    assert timeline.rate == pytest.approx(0.95 if time_of is simulated else 1.0, abs=1e-4)


def test_a_pause_of_the_recording_is_not_a_jump_of_its_clock() -> None:
    assert not len(jumps(times(simulated, seconds=60, paused_ns=(20 * S, 45 * S))))


def test_no_message_arrives_before_its_stamp() -> None:
    found = times(simulated)
    arrivals = timeline_of({"/a": found}).arrivals(found.logs_ns)
    assert ((arrivals - found.stamps_ns) / MS).min() > -1.0  # a bin of 0.1 s has one message of the envelope


def test_the_recorded_clock_is_followed_exactly() -> None:
    logs = START_NS + np.arange(2000) * 10 * MS
    clock = Times(logs, np.array([simulated(log) for log in logs.tolist()], np.int64))
    timeline = timeline_of({"/clock": clock, "/a": times(simulated)})

    assert timeline.source == "/clock"
    assert timeline.at(START_NS + 1234 * MS) == simulated(START_NS + 1230 * MS)


def test_a_pause_of_the_simulation_is_followed() -> None:
    timeline = timeline_of({"/a": times(paused, paused_ns=(6 * S, 10 * S))})

    assert len(timeline.segments) == 1
    moving = [log for log in EVERY if not START_NS + 6 * S < log < START_NS + 10 * S]
    assert np.abs(error_ms(timeline, paused, moving)).max() < 2.0
    during = [timeline.at(log) for log in range(START_NS + 6 * S, START_NS + 10 * S, 50 * MS)]
    assert during == sorted(during)
    assert max(during) <= timeline.at(START_NS + 10 * S + 12 * MS)


def test_a_speed_that_varies_is_followed() -> None:
    def varying(log_ns: int) -> int:
        seconds = (log_ns - START_NS) / S
        return 10 * S + round(S * (seconds - 0.3 * np.sin(seconds)))

    timeline = timeline_of({"/a": times(varying, 60), "/b": times(varying, 60, seed=2)})

    steps = range(START_NS + S, START_NS + 59 * S, 37 * MS)
    assert np.abs(error_ms(timeline, varying, steps)).max() < 100.0
    arrivals = [timeline.at(log) for log in steps]
    assert arrivals == sorted(arrivals)


def test_an_hour_whose_speed_changes_every_second_is_followed() -> None:
    rng = np.random.default_rng(0)
    speed = np.clip(1 + 0.1 * np.repeat(rng.normal(size=3600), 20), 0.5, 1.0)
    logs = START_NS + np.arange(len(speed)) * 50 * MS
    true = 10 * S + np.cumsum(speed * 50 * MS).astype(np.int64)
    timeline = timeline_of({"/a": Times(logs + rng.integers(2 * MS, 12 * MS, len(logs)), true)})

    looked_at = zip(logs[::7].tolist(), true[::7].tolist(), strict=True)
    error = [abs(timeline.at(log + 2 * MS) - time) / MS for log, time in looked_at]
    assert np.percentile(error, 99) < 60.0  # a piece is 1.5 s long at least, and the speed changes by 0.1 in between


def test_each_jump_back_begins_a_segment() -> None:
    timeline = timeline_of({"/a": times(looped), "/b": times(looped, seed=1)})

    spans = timeline.spans(START_NS, START_NS + 20 * S)
    assert len(spans) == 4
    for number, span in enumerate(spans):
        assert abs(span.start_ns - START_NS - 5 * number * S) <= 22 * MS
    assert "jumps 3 times" in timeline.note


def test_damaged_stamps_do_not_move_the_timeline() -> None:
    clean = times(simulated)
    stamps = clean.stamps_ns.copy()
    stamps[::97] = 4 * 10**18
    stamps[50::97] = 1
    timeline = timeline_of({"/a": Times(clean.logs_ns, stamps), "/b": times(simulated, seed=1)})
    assert len(timeline.segments) == 1
    assert np.abs(error_ms(timeline, simulated, EVERY)).max() < 1.0


def test_the_clock_of_most_topics_is_the_timeline() -> None:
    sim = {f"/sim_{k}": times(simulated, seed=k) for k in range(3)}
    both = sim | {"/joy": times(wall), "/lidar": times(since_boot)}
    assert timeline_of(both).topics == tuple(sim)
    assert timeline_of({"/sim": sim["/sim_0"], "/joy": both["/joy"]}) == Timeline()
    assert timeline_of(both, devices=tuple(sim)) == Timeline()


def test_a_topic_of_few_messages_has_no_say() -> None:
    assert timeline_of({"/a": times(wall, 20, 200), "/b": times(since_boot, 0.5)}) == Timeline()


def test_the_clock_without_stamped_topics_is_the_timeline() -> None:
    assert timeline_of({"/clock": times(simulated)}).source == "/clock"


anything = st.lists(
    st.tuples(st.integers(0, 3 * S), st.integers(-1, 2**62) | st.integers(0, 100 * S)), min_size=1, max_size=60
)


@given(anything, anything, st.booleans())
@example([(0, 0)], [(0, 1), (0, S + 2)], False)  # came at once
def test_any_stamps_give_a_timeline(one: list[tuple[int, int]], other: list[tuple[int, int]], with_clock: bool) -> None:
    def given_times(rows: list[tuple[int, int]]) -> Times:
        logs = START_NS + np.cumsum([step for step, _ in rows])
        return Times(logs, np.array([stamp for _, stamp in rows], np.int64))

    found = {"/a": given_times(one), "/clock" if with_clock else "/b": given_times(other)}
    timeline = timeline_of(found)

    first, last = START_NS, START_NS + 200 * S
    for span in timeline.spans(first, last):
        length = span.stop_ns - span.start_ns - 1
        arrivals = [timeline.at(span.start_ns + length * k // 50) for k in range(51)]
        assert min(arrivals) >= 0
        assert timeline.source == "/clock" or arrivals == sorted(arrivals)
