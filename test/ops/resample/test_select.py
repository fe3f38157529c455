"""Selection: cases worked out by hand, and every rule against a search through all samples."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from robocache_ros.alignments import NAMES
from robocache_ros.ops.resample.selection import ALIGNED, HELD, NONE, Rule, select, select_one

STAMPS = np.array([100, 200, 260, 400], np.int64)


def selected(method, tick, *, gap=100, age=30, holds=False, **seen):
    ticks = np.array([tick], np.int64)
    if seen:
        seen = {"arrivals_ns": np.array(seen["arrivals"]), "deadlines_ns": np.array([seen["deadline"]])}
    s = select(STAMPS, ticks, Rule(method, gap, age, holds), **seen)
    return s.lower[0], s.upper[0], s.weight[0], s.valid[0], s.age_ns[0]


@pytest.mark.parametrize(
    ("tick", "row"),
    [
        (99, (-1, -1, 0, NONE, 0)),  # before all samples
        (100, (0, 0, 0, ALIGNED, 0)),  # on one
        (125, (0, 1, 0.25, ALIGNED, 25)),  # between two
        (260, (2, 2, 0, ALIGNED, 0)),  # on one, the next too far away
        (290, (2, 2, 0, HELD, 30)),  # between two that are too far apart: held while young
        (291, (-1, -1, 0, NONE, 0)),  # and no longer
        (430, (3, 3, 0, HELD, 30)),  # past the last
    ],
)
def test_linear_lies_between_neighbours_and_holds_past_them(tick, row):
    assert selected("linear", tick) == row


@pytest.mark.parametrize(
    ("tick", "row"),
    [
        (99, (-1, -1, 0, NONE, 0)),
        (230, (1, 1, 0, ALIGNED, 30)),
        (231, (-1, -1, 0, NONE, 0)),
        (260, (2, 2, 0, ALIGNED, 0)),
    ],
)
def test_hold_takes_the_newest_while_it_is_young(tick, row):
    assert selected("hold", tick) == row


@pytest.mark.parametrize(
    ("tick", "row"),
    [
        (70, (0, 0, 0, ALIGNED, -30)),
        (230, (1, 1, 0, ALIGNED, 30)),
        (231, (2, 2, 0, ALIGNED, -29)),
        (330, (-1, -1, 0, NONE, 0)),
    ],
)
def test_nearest_takes_the_earlier_on_a_tie(tick, row):
    assert selected("nearest", tick) == row


@pytest.mark.parametrize(
    ("tick", "row"),
    [
        (69, (-1, -1, 0, NONE, 0)),  # the first sample is too far ahead
        (70, (0, 0, 0, ALIGNED, -30)),
        (200, (1, 1, 0, ALIGNED, 0)),  # on one
        (201, (-1, -1, 0, NONE, 0)),  # the one before it is nearer
        (230, (2, 2, 0, ALIGNED, -30)),
        (401, (-1, -1, 0, NONE, 0)),  # after all samples
    ],
)
def test_next_takes_the_first_sample_at_or_after_the_tick(tick, row):
    assert selected("next", tick) == row


@pytest.mark.parametrize(
    ("method", "tick", "row"),
    [
        ("next", 370, (3, 3, 0, ALIGNED, -30)),
        ("next", 369, (2, 2, 0, HELD, 109)),
        ("next", 500, (3, 3, 0, HELD, 100)),
        ("next", 69, (-1, -1, 0, NONE, 0)),
        ("nearest", 291, (2, 2, 0, HELD, 31)),
        ("nearest", 369, (2, 2, 0, HELD, 109)),  # though the one ahead is nearer
        ("nearest", 370, (3, 3, 0, ALIGNED, -30)),
        ("hold", 290, (2, 2, 0, ALIGNED, 30)),
        ("hold", 291, (2, 2, 0, HELD, 31)),
        ("linear", 399, (2, 2, 0, HELD, 139)),
    ],
)
def test_a_stream_that_holds_has_the_newest_sample_before_a_tick_that_no_other_is_selected_for(method, tick, row):
    assert selected(method, tick, holds=True) == row


def test_next_skips_a_sample_that_had_not_arrived():
    late = {"arrivals": [110, 290, 270, 410], "deadline": 280}
    assert selected("next", 150, age=200, **late) == (2, 2, 0, ALIGNED, -110)
    assert selected("next", 270, age=200, **late) == (-1, -1, 0, NONE, 0)


def test_a_neighbour_that_had_not_arrived_is_not_used():
    late = {"arrivals": [110, 290, 270, 410], "deadline": 280}
    assert selected("linear", 150, gap=200, age=60, **late) == (0, 2, np.float32(50 / 160), ALIGNED, 50)
    assert selected("hold", 230, age=200, **late) == (0, 0, 0, ALIGNED, 130)
    assert selected("linear", 300, gap=200, age=60, **late) == (2, 2, 0, HELD, 40)


def test_no_samples_give_nothing():
    s = select(np.empty(0, np.int64), np.array([5, 6]), Rule("linear", 1, 1))
    assert s.lower.tolist() == [-1, -1]
    assert s.valid.tolist() == [NONE, NONE]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 80)), max_size=12, unique_by=lambda s: s[0]),
    st.lists(st.tuples(st.integers(-5, 70), st.integers(0, 90)), max_size=8),
    st.sampled_from(["linear", "hold", "nearest", "next"]),
    st.integers(1, 20),
    st.integers(0, 20),
)
def test_every_selection_is_what_a_search_through_all_samples_finds(samples, ticks, method, gap, age):
    samples.sort()
    stamps, arrivals = (np.array([s[i] for s in samples], np.int64) for i in (0, 1))
    times, deadlines = (np.array([t[i] for t in ticks], np.int64) for i in (0, 1))
    got = select(stamps, times, Rule(method, gap, age), arrivals, deadlines)
    for i, (tick, deadline) in enumerate(ticks):
        seen = [s for s, arrival in samples if arrival <= deadline]
        before = max((s for s in seen if s <= tick), default=None)
        after = min((s for s in seen if s > tick), default=None)
        used = before
        valid = NONE
        if method == "nearest":
            near = min(seen, key=lambda s: (abs(tick - s), s), default=None)
            used, valid = near, int(near is not None and abs(tick - near) <= age)
        elif method == "next":
            used = before if before == tick else after
            valid = int(used is not None and used - tick <= age)
        elif method == "hold":
            valid = int(before is not None and tick - before <= age)
        elif before is not None:
            between = before == tick or (after is not None and after - before <= gap)
            valid = ALIGNED if between else HELD if tick - before <= age else NONE
        assert got.valid[i] == valid
        if valid:
            assert stamps[got.lower[i]] == used
            assert got.age_ns[i] == tick - used
        if method == "linear" and valid == ALIGNED and before != tick:
            assert stamps[got.upper[i]] == after
            assert got.weight[i] == np.float32((tick - before) / (after - before))


METHODS = st.sampled_from(NAMES)
samples = st.lists(st.tuples(st.integers(-30, 30), st.integers(-5, 40)), max_size=12, unique_by=lambda s: s[0])
BIG = 1_760_000_000 * 10**9


rules = st.builds(Rule, METHODS, st.integers(1, 30), st.integers(0, 30), st.booleans())


@given(samples, st.integers(-40, 40), rules, st.none() | st.integers(-40, 60))
@example([(-7, 0), (7, 0)], 0, Rule("nearest", 20, 20), None)  # equally near: the earlier one
def test_one_tick_is_selected_as_one_of_many(sent, tick, rule, deadline):
    sent = sorted(sent)
    stamps = BIG + np.array([s for s, _ in sent], np.int64)
    arrivals = stamps + np.array([a for _, a in sent], np.int64)
    deadlines = None if deadline is None else np.array([BIG + deadline])
    many = select(stamps, np.array([BIG + tick]), rule, arrivals, deadlines)
    one = select_one(stamps, BIG + tick, rule, arrivals, None if deadline is None else BIG + deadline)
    assert one._replace(weight=float(np.float32(one.weight))) == tuple(
        getattr(many, name)[0] for name in ("lower", "upper", "weight", "valid", "age_ns")
    )
