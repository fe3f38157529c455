"""The index of a stream's samples, against a plain sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.engine.track import Track

operations = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "insert", "prune", "drop"]), st.integers(0, 30)), max_size=60
)


def replay(track, steps):
    """Do the steps on the track and on a dictionary stamp -> (arrival, slot); compare after each."""
    model = {}
    for arrival, (what, number) in enumerate(steps):
        if what == "insert" and not track.holds(number):
            if track.full:
                del model[min(model)]
            model[number] = (arrival, track.insert(number, arrival))
        elif what == "prune":
            left = track.prune(number)
            assert sorted(left) == sorted(slot for stamp, (_, slot) in model.items() if stamp < number)
            model = {stamp: kept for stamp, kept in model.items() if stamp >= number}
        elif what == "drop" and number < len(track):
            stamp = sorted(model)[number]
            assert track.drop(number) == model.pop(stamp)[1]
        assert track.stamps_ns.tolist() == sorted(model)
        assert track.arrivals_ns.tolist() == [model[stamp][0] for stamp in sorted(model)]
        assert track.slots.tolist() == [model[stamp][1] for stamp in sorted(model)]
        assert all(track.holds(stamp) for stamp in model)
        assert len({slot for _, slot in model.values()}) == len(model)


@given(operations)
def test_a_bounded_track_gives_up_its_oldest_sample(steps):
    replay(Track(5), steps)


@given(operations)
def test_a_growing_track_keeps_every_sample(steps):
    track = Track(2, growing=True)
    replay(track, steps)
    assert not track.full


def test_a_cleared_track_takes_older_stamps_again():
    track = Track(4)
    track.insert(10, 0)
    track.clear()
    assert not track.holds(10)
    track.insert(3, 1)
    assert track.stamps_ns.tolist() == [3]
