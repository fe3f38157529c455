"""Streams of poses live as from a recording, and on the GPU backend as on the CPU."""

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from robocache_ros.engine import FusionEngine, Ingest, offline
from robocache_ros.spec import load_spec

MS = 1_000_000
T0 = 1_760_000_000 * 10**9  # a tick
TF = {"topic": "/tf", "type": "tf2_msgs/msg/TFMessage"}


def spec(frames=("base", "tool"), more=None, timeline=None, **keys):
    streams = {"ee": {**TF, "frames": list(frames), **keys}, **(more or {})}
    return load_spec({"robocache": 1, "delay_ms": 40, **(timeline or {}), "streams": streams})


def ingest(fusion=None, **options):
    return Ingest(fusion, FusionEngine(fusion, **options)) if fusion else ingest(spec(), **options)


def at(ms):
    return T0 + ms * MS


links = st.lists(
    st.tuples(
        st.integers(0, 40),  # stamp in 10 ms
        st.integers(0, 90),  # delay in ms
        st.lists(
            st.tuples(st.sampled_from(["base", "arm", "other"]), st.sampled_from(["arm", "tool", "other"])),
            min_size=1,
            max_size=3,
        ),
    ),
    max_size=60,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(links, st.sampled_from(["fixed", "eager"]), st.integers(0, 2**16))
def test_a_live_engine_makes_the_rows_of_the_deployed_recording(tf_message, drawn, emit, seed):
    check_live_and_deployed_rows(tf_message, drawn, emit, seed)


def test_an_eager_tick_that_waits_for_a_transform_is_not_made_early_by_a_complete_later_tick(tf_message):
    drawn = [
        (0, 0, [("base", "arm")]),
        (14, 0, [("arm", "tool")]),
        (15, 0, [("base", "arm")]),
        (25, 11, [("base", "arm")]),  # arrives at 261 ms; the tick at 240 ms waits for transforms until 280 ms
        (26, 0, [("base", "tool")]),  # completes the tick at 260 ms
    ]
    check_live_and_deployed_rows(tf_message, drawn, "eager", seed=0)


def check_live_and_deployed_rows(tf_message, drawn, emit, seed):
    rng = np.random.default_rng(seed)
    fusion = spec(timeline={"emit": emit}, more={"back": {**TF, "frames": ["tool", "base"]}}, max_age_ms=30)
    log = []
    for stamp, delay, pairs in drawn:
        poses = [
            (at(10 * stamp), *pair, tuple(rng.normal(size=3)), tuple(q / np.linalg.norm(q)))
            for pair in pairs
            for q in [rng.normal(size=4)]
        ]
        log.append((at(10 * stamp + delay), tf_message(*poses)))
    log = sorted(log, key=lambda entry: entry[0])
    messages = [(name, arrival, data) for arrival, data in log for name in ("ee", "back")]
    recorded = list(
        offline.run(messages, ingest(fusion, unbounded=True), at(0) + 1, at(600), visibility="deployed", chunk=7)
    )
    rows = dict(
        zip(
            np.concatenate([f.ticks_ns for f in recorded]).tolist(),
            torch.cat([f.rows() for f in recorded]),
            strict=True,
        )
    )

    live = ingest(fusion)
    made = [live.engine.advance(at(0))]
    for name, arrival, data in messages:
        while len(frames := live.engine.advance(arrival - 1, limit=1)):
            made.append(frames)
        live.serialized(name, data, arrival)
    while len(frames := live.engine.advance(at(640), limit=1)):
        made.append(frames)
    ticks = [int(f.ticks_ns[0]) for f in made if len(f) and f.ticks_ns[0] in rows]
    assert len(ticks) >= 25
    for f in made:
        if len(f) and int(f.ticks_ns[0]) in rows:
            assert f.rows()[0].numpy().tobytes() == rows[int(f.ticks_ns[0])].numpy().tobytes()


def test_the_gpu_backend_gets_the_bits_of_the_cpu_backend(tf_message, emulated):
    fusion = spec(timeline={"horizon": 3})
    rng = np.random.default_rng(0)
    both = [Ingest(fusion, emulated(fusion)), ingest(fusion)]
    ticks = 0
    for into in both:
        into.engine.advance(at(0))
    for ms in range(5, 2000, 15):
        data = tf_message(
            (at(ms), "base", "arm", tuple(rng.normal(size=3))), (at(ms), "arm", "tool", tuple(rng.normal(size=3)))
        )
        frames = []
        for into in both:
            into.serialized("ee", data, at(ms))
            frames.append(into.engine.advance(at(ms)))
        ticks += len(frames[0])
        assert frames[0].rows().numpy().tobytes() == frames[1].rows().numpy().tobytes()
    assert ticks > 90
