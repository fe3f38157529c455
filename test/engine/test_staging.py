"""The pinned ring's room: no two copies in flight share a byte, and none is lost."""

from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.engine.uplink import ALIGNMENT, Staging

SIZE = 16 * ALIGNMENT


@given(st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 4)), max_size=60))
def test_pieces_in_flight_are_whole_and_apart(steps):
    staging, flights = Staging(SIZE), []  # (head, first, past)
    for size, done in steps:
        for _ in range(min(done, len(flights))):
            staging.release(flights.pop(0)[0])
        offset = staging.claim(size)
        if offset is None:
            assert flights or staging.head % SIZE  # only an empty ring that begins anew has room for all
            continue
        assert offset >= 0
        assert offset + size <= SIZE
        assert all(offset + size <= first or past <= offset or not size for _, first, past in flights)
        flights.append((staging.head, offset, offset + size))


def test_all_that_was_released_is_there_again():
    staging = Staging(SIZE)
    for _ in range(5):
        assert staging.claim(SIZE) == 0
        assert staging.claim(1) is None
        staging.release(staging.head)
