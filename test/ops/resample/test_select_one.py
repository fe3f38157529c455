"""Selection for one tick, as on a robot, gives the result of selection for many ticks, as for a recording."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from robocache_ros.alignments import NAMES
from robocache_ros.ops.resample.selection import Rule, select, select_one

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
