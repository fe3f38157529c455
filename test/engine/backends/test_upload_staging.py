"""Allocation in the pinned ring: no two in-flight copies share a byte, and no byte is lost."""

from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.engine.backends.gpu import ALIGNMENT, Staging

SIZE = 16 * ALIGNMENT


@given(st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 4)), max_size=60))
def test_pieces_of_in_flight_copies_do_not_overlap(steps):
    staging, in_flight = Staging(SIZE), []  # (head, first, past)
    for size, done in steps:
        for _ in range(min(done, len(in_flight))):
            staging.release(in_flight.pop(0)[0])
        offset = staging.claim(size)
        if offset is None:
            assert in_flight or staging.head % SIZE  # only an empty ring is one contiguous piece
            continue
        assert offset >= 0
        assert offset + size <= SIZE
        assert all(offset + size <= first or past <= offset or not size for _, first, past in in_flight)
        in_flight.append((staging.head, offset, offset + size))


def test_released_bytes_are_free_again():
    staging = Staging(SIZE)
    for _ in range(5):
        assert staging.claim(SIZE) == 0
        assert staging.claim(1) is None
        staging.release(staging.head)
