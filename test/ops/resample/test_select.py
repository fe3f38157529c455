"""Selection: every rule against a search through all samples."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from robocache_ros.alignments import NAMES
from robocache_ros.ops.resample.selection import ALIGNED, HELD, NONE, Rule, select, select_one


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 80)), max_size=12, unique_by=lambda s: s[0]),
    st.lists(st.tuples(st.integers(-5, 70), st.integers(0, 90)), max_size=8),
    st.sampled_from(["linear", "hold", "nearest", "next"]),
    st.integers(1, 20),
    st.integers(0, 20),
    st.booleans(),
)
def test_every_selection_is_what_a_search_through_all_samples_finds(samples, ticks, method, gap, age, holds):
    samples.sort()
    stamps, arrivals = (np.array([s[i] for s in samples], np.int64) for i in (0, 1))
    times, deadlines = (np.array([t[i] for t in ticks], np.int64) for i in (0, 1))
    got = select(stamps, times, Rule(method, gap, age, holds), arrivals, deadlines)
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
        if not valid and holds and before is not None:
            used, valid = before, HELD
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
    one = select_one(stamps.tolist(), BIG + tick, rule, arrivals.tolist(), None if deadline is None else BIG + deadline)
    lower, upper, weight, *rest = one
    expected = [getattr(many, name)[0] for name in ("lower", "upper", "weight", "valid", "age_ns")]
    assert [lower, upper, float(np.float32(weight)), *rest] == expected
