"""Messages of a recording that are pushed together: what the engine has and what is counted is as one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.engine import FusionEngine, Ingest
from robocache_ros.spec import load_spec
from test.engine.conftest import MS, T0
from test.fuzz.messages import serialize

JOINTS = {"topic": "/j", "type": "sensor_msgs/msg/JointState", "names": ["a", "b"]}
STREAMS = {
    "blended": {**JOINTS, "align": "linear"},
    "held": {**JOINTS, "field": "velocity", "align": "hold"},
    "filled": {**JOINTS, "align": "nearest", "fill": [7, -7]},
    "by_receive_time": {**JOINTS, "align": "hold", "stamp": "receive"},
    "early": {**JOINTS, "align": "nearest", "latency_ms": 7},
}


def joint_state(stamp_ns, names="ab", values=(1.0, 2.0), order="<", nanoseconds=None, frame="base"):
    """A JointState in CDR, with position and velocity."""
    seconds, rest = divmod(stamp_ns, 10**9)
    stamp = {"sec": seconds, "nanosec": rest if nanoseconds is None else nanoseconds}
    joints = {"name": list(names), "position": values, "velocity": values}
    return serialize(JOINTS["type"], {"header": {"stamp": stamp, "frame_id": frame}, **joints}, order)


def outcome(ingest, until_ms):
    ticks = T0 + np.arange(0, until_ms, 20) * MS
    frames = ingest.engine.resolve(ticks)
    late = ingest.engine.resolve(ticks, ticks + 10 * MS)  # by what had arrived
    bits = [(f.fused.numpy().tobytes(), f.valid.tobytes(), f.age_ns.tobytes()) for f in (frames, late)]
    return bits, {name: dict(counts) for name, counts in ingest.counters.items()}, ingest.stamps_ns


def same_both_ways(messages, arrivals, streams=STREAMS):
    fusion = load_spec({"robocache": 1, "delay_ms": 10, "streams": streams})
    separate, together = (Ingest(fusion, FusionEngine(fusion, unbounded=True)) for _ in range(2))
    for stream in streams:
        for data, arrival_ns in zip(messages, arrivals, strict=True):
            separate.serialized(stream, data, arrival_ns)
        together.serialized_run(stream, messages, arrivals)
    until_ms = (max(arrivals) - T0) // MS + 100
    assert outcome(together, until_ms) == outcome(separate, until_ms)
    return together


ODD = {
    "another order": {"names": "ba"},
    "another joint": {"names": "abx", "values": (1.0, 2.0, 3.0)},
    "another joint's name": {"names": "ac"},
    "no joints": {"names": "", "values": ()},
    "another frame": {"frame": "tool"},
    "big endian": {"order": ">"},
    "a value too few": {"values": (1.0,)},
    "not a number": {"values": (np.nan, 1.0)},
    "infinite": {"values": (np.inf, 1.0)},
    "beyond float32": {"values": (1e39, 1.0)},
    "the largest float32 and a half step": {"values": (2.0**128 - 2.0**103, 1.0)},
    "a second of nanoseconds": {"nanoseconds": 10**9},
}


PLACES = [*((odd, 150) for odd in ODD), *((odd, at) for odd in ("another order", "no joints") for at in (0, 299))]


@pytest.mark.parametrize(("odd", "at"), PLACES)
def test_an_odd_message_among_others_is_read_as_a_single_one(odd, at):
    arrivals = [T0 + 2 * MS * i for i in range(300)]
    keys = [ODD[odd] if i == at else {"values": (i / 7, -i)} for i in range(300)]
    messages = [joint_state(t - MS, **given) for t, given in zip(arrivals, keys, strict=True)]
    same_both_ways(messages, arrivals)


@pytest.mark.parametrize("cut", [1, 8, 40])
def test_a_message_that_is_cut_is_dropped_and_those_around_it_are_not(cut):
    arrivals = [T0 + 2 * MS * i for i in range(300)]
    messages = [joint_state(t - MS) for t in arrivals]
    messages[100] = messages[100][:-cut]
    together = same_both_ways(messages, arrivals)
    assert together.counters["blended"]["dropped"] == 1
    assert together.counters["blended"]["accepted"] == 299


def test_quaternions_have_the_same_bits_together_as_one_by_one():
    random = np.random.default_rng(7)
    rotations = random.normal(size=(300, 4))
    rotations *= (random.uniform(0.97, 1.03, 300) / np.linalg.norm(rotations, axis=1))[:, None]
    rotations[::3] /= np.linalg.norm(rotations[::3], axis=1)[:, None]
    rotations[200] *= 2  # no rotation
    arrivals = [T0 + 2 * MS * i for i in range(300)]
    messages = [joint_state(t, "abcd", values) for t, values in zip(arrivals, rotations.tolist(), strict=True)]
    turn = {**JOINTS, "names": list("abcd"), "align": "slerp", "max_gap_ms": 1000}
    together = same_both_ways(messages, arrivals, {"turn": turn})
    assert together.counters["turn"]["dropped:not_unit"] == 1
    values = together.engine.resolve(np.array(arrivals)).fused  # each of them at a sample, except one
    assert abs(values.double().norm(dim=1) - 1).max() < 1e-6
    assert values[::3].numpy().tobytes() == rotations[::3].astype(np.float32).tobytes()  # untouched


times = st.integers(-40, 120)
steps = st.lists(st.tuples(st.integers(0, 5), times, st.sampled_from(["", "", "", "", *ODD])), min_size=1, max_size=80)


@settings(max_examples=40)
@given(steps, st.integers(1, 6))
def test_samples_and_counters_are_those_of_single_messages(steps, repeated):
    arrival_ns, messages, arrivals = T0, [], []
    for number, (pause_ms, delay_ms, odd) in enumerate(steps * repeated):
        arrival_ns += pause_ms * MS
        late_ns = delay_ms * MS if number % 5 == 0 else MS  # doubled, out of order, late and skewed stamps among others
        stamp_ns = 0 if delay_ms == 119 else arrival_ns - late_ns * (100 if delay_ms == 118 else 1)
        messages.append(joint_state(stamp_ns, **{"values": (number / 3, -number), **ODD.get(odd, {})}))
        arrivals.append(arrival_ns)
    same_both_ways(messages, arrivals)
