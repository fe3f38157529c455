"""The index of a stream's samples, against a plain sorted list."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.engine.samples import SampleIndex

operations = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "insert", "extend", "prune", "drop"]), st.integers(0, 30)),
    max_size=60,
)


def replay(index, steps):
    """Apply the steps to the index and to a dictionary stamp -> (arrival, slot); compare after each."""
    model = {}
    for arrival, (what, number) in enumerate(steps):
        if what == "insert" and number not in index:
            if index.full:
                del model[min(model)]
            model[number] = (arrival, index.insert(number, arrival))
        elif what == "extend" and index.growing:
            stamps = max(model, default=0) + 1 + np.arange(number)
            slots = index.extend(stamps, np.full(number, arrival)).tolist()
            assert len(set(slots)) == number
            assert not set(slots) & {slot for _, slot in model.values()}
            model.update({stamp: (arrival, slot) for stamp, slot in zip(stamps.tolist(), slots, strict=True)})
        elif what == "prune":
            freed = index.prune(number)
            assert sorted(freed) == sorted(slot for stamp, (_, slot) in model.items() if stamp < number)
            model = {stamp: kept for stamp, kept in model.items() if stamp >= number}
        elif what == "drop" and number < len(index):
            stamp = sorted(model)[number]
            assert index.drop(number) == model.pop(stamp)[1]
        assert index.stamps_ns.tolist() == sorted(model)
        assert index.arrivals_ns.tolist() == [model[stamp][0] for stamp in sorted(model)]
        assert index.slots.tolist() == [model[stamp][1] for stamp in sorted(model)]
        assert all(stamp in index for stamp in model)
        assert len({slot for _, slot in model.values()}) == len(model)


@given(operations)
def test_a_bounded_index_drops_its_oldest_sample(steps):
    replay(SampleIndex(5), steps)


@given(operations)
def test_a_growing_index_keeps_every_sample(steps):
    index = SampleIndex(2, growing=True)
    replay(index, steps)
    assert not index.full


def test_a_cleared_index_accepts_older_stamps_again():
    index = SampleIndex(4)
    index.insert(10, 0)
    index.clear()
    assert 10 not in index
    index.insert(3, 1)
    assert index.stamps_ns.tolist() == [3]
