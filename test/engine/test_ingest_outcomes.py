"""What Ingest counts and logs for messages that the engine does not keep."""

import gc
import struct
import weakref

import numpy as np
import pytest

from robocache_ros.engine import FusionEngine, Ingest, Outcome
from robocache_ros.spec import load_spec

T0 = 1_760_000_000 * 10**9
VECTOR = {"topic": "/v", "type": "geometry_msgs/msg/Vector3Stamped", "field": "vector.x"}


def ingest(**keys):
    fusion = load_spec({"robocache": 1, "streams": {"v": {**VECTOR, **keys}}})
    return Ingest(fusion, FusionEngine(fusion))


def message(stamp_ns):
    """A Vector3Stamped in CDR."""
    header = struct.pack("<4BiII4x", 0, 1, 0, 0, *divmod(stamp_ns, 10**9), 1)
    return header + bytes(-(len(header) - 4) % 8) + struct.pack("<3d", 1.0, 2.0, 3.0)


def test_an_unset_stamp_is_counted_as_unstamped_and_the_log_names_the_key_to_set(caplog):
    target = ingest()
    for _ in range(3):
        assert target.serialized("v", message(0), T0) is Outcome.UNSTAMPED
    assert target.counters["v"] == {"received": 3, "decoded": 3, "unstamped": 3}
    assert [r.getMessage() for r in caplog.records] == [
        "v: a message is dropped: its header stamp is not set; set it in the publisher, or set stamp: header_or_receive"
    ]


def test_an_unset_stamp_is_of_no_account_for_a_stream_by_receive_time():
    assert ingest(stamp="receive").serialized("v", message(0), T0) is Outcome.ACCEPTED


@pytest.mark.parametrize(("seconds", "word"), [(3600, "after"), (-3600, "before")])
def test_a_skewed_stamp_is_logged_once_with_its_distance_and_the_way_out(seconds, word, caplog):
    target = ingest()
    for _ in range(3):
        assert target.serialized("v", message(T0 + seconds * 10**9), T0) is Outcome.SKEWED
    assert target.counters["v"]["skewed"] == 3
    (record,) = caplog.records
    assert f"its stamp is 3600.000 s {word} its arrival, more than max_skew_ms allows" in record.getMessage()
    assert "max_age_ms" not in record.getMessage()


def test_an_engine_and_its_buffers_are_freed_without_the_garbage_collector():
    gc.disable()
    try:
        target = ingest()
        target.serialized("v", message(T0), T0)
        target.engine.resolve(np.array([T0]))
        engine = weakref.ref(target.engine)
        del target
        assert engine() is None
    finally:
        gc.enable()
