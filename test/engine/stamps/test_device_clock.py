"""Stamps of a device's own clock, translated from stamps and arrivals alone."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.engine.device_clock import MAX_VERTICES, DeviceClock, LowerHull

MS, S = 1_000_000, 1_000_000_000
HOST_NS, DEVICE_NS = 1_760_000_000 * S, 5 * S  # a device that has run for five seconds


def sampled(seconds=60.0, rate_hz=100.0, skew_ppm=20.0, jitter="uniform", seed=0, device_ns=DEVICE_NS):
    """Stamps, arrivals and true times on the host's clock, in the order of arrival; jitter of 20 ms."""
    rng = np.random.default_rng(seed)
    true = np.arange(round(seconds * rate_hz)) * S / rate_hz
    delay = {
        "uniform": lambda: rng.uniform(0, 20 * MS, len(true)),
        "exponential": lambda: rng.exponential(20 * MS, len(true)),
        "heavy tail": lambda: np.minimum(5 * MS * rng.pareto(1.2, len(true)), 2 * S),
    }[jitter]()
    order = np.argsort(true + delay, kind="stable")
    stamps = (true * (1 - skew_ppm * 1e-6)).astype(np.int64) + device_ns
    arrivals = (true + delay).astype(np.int64) + HOST_NS
    times = true.astype(np.int64) + HOST_NS
    return stamps[order].tolist(), arrivals[order].tolist(), times[order].tolist()


def translated(stamps, arrivals, clock=None):
    clock = clock or DeviceClock()
    return [clock.translate(stamp, arrival) for stamp, arrival in zip(stamps, arrivals, strict=True)]


def errors_ms(stamps, arrivals, true, after_s):
    error = (np.array(translated(stamps, arrivals)) - np.array(true)) / MS
    return error[np.array(true) > HOST_NS + after_s * S]


@pytest.mark.parametrize(
    ("seconds", "skew_ppm", "jitter"),
    [
        *((300, skew, jitter) for skew in (-20, 100) for jitter in ("uniform", "exponential", "heavy tail")),
        (60, 10_500, "uniform"),  # simulated time at another rate
    ],
)
def test_the_error_is_below_a_millisecond_after_ten_seconds(seconds, skew_ppm, jitter):
    assert np.abs(errors_ms(*sampled(seconds, 100, skew_ppm, jitter), after_s=10)).max() < 1.0


@settings(max_examples=20)
@given(
    skew_ppm=st.floats(-150, 150),
    rate_hz=st.sampled_from([50.0, 100.0, 200.0, 400.0]),
    jitter=st.sampled_from(["uniform", "exponential", "heavy tail"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_error_stays_below_the_jitter_for_any_crystal(skew_ppm, rate_hz, jitter, seed):
    error = errors_ms(*sampled(30, rate_hz, skew_ppm, jitter, seed), after_s=10)
    # The rarest seeds have no fast message for seconds; the typical error is far below a millisecond.
    assert np.abs(error).max() < 10.0
    assert np.median(np.abs(error)) < 1.0


steps = st.lists(
    st.tuples(st.integers(-2 * S, 5 * S) | st.integers(0, 50 * MS), st.integers(0, 3 * S) | st.integers(0, 50 * MS)),
    min_size=2,
    max_size=60,
)


def walked(steps):
    stamps = np.cumsum([DEVICE_NS * 100, *(step for step, _ in steps)]).tolist()
    arrivals = np.cumsum([HOST_NS, *(step for _, step in steps)]).tolist()
    return stamps, arrivals


def test_a_translation_is_rounded_down_to_the_nanosecond():
    clock = DeviceClock()
    translated([0, S], [1000, S + 1050], clock)  # the host's clock is faster by 50 ns in a second
    assert clock.translate(3 * S // 2 + 1, 3 * S) == 1000 + (3 * S // 2 + 1) * (S + 50) // S == 1_500_001_076


@given(steps)
def test_a_translated_stamp_is_never_after_its_arrival(steps):
    stamps, arrivals = walked(steps)
    assert all(out <= arrival for out, arrival in zip(translated(stamps, arrivals), arrivals, strict=True))


@given(steps)
def test_translation_is_monotone_where_stamps_are(steps):
    stamps, arrivals = walked([(abs(device), host) for device, host in steps])
    out = translated(stamps, arrivals)
    assert all(later >= earlier for earlier, later in pairwise(out))


@given(steps, st.integers(-(10**17), 10**17), st.integers(-(10**17), 10**17))
def test_offsets_of_either_clock_change_nothing_else(steps, device, host):
    stamps, arrivals = walked(steps)
    moved = translated([stamp + device for stamp in stamps], [arrival + host for arrival in arrivals])
    assert moved == [out + host for out in translated(stamps, arrivals)]


@given(steps)
def test_equal_stamps_have_equal_translations(steps):
    stamps, arrivals = walked([(abs(device) % (50 * MS), host % (50 * MS)) for device, host in steps])
    clock = DeviceClock()
    for stamp, arrival in zip(stamps, arrivals, strict=True):
        assert clock.translate(stamp, arrival) == clock.translate(stamp, arrival)


def test_a_restarted_device_is_translated_anew_and_counted():
    stamps, arrivals, _ = sampled(20)
    again, more, rest = sampled(20, seed=1, device_ns=S)
    pause = 30 * S
    clock = DeviceClock()
    translated(stamps, arrivals, clock)
    out = translated(again, [arrival + pause for arrival in more], clock)
    assert clock.jumps == 1
    error = (np.array(out) - np.array(rest) - pause) / MS
    assert np.abs(error[-900:]).max() < 1.0
    assert np.abs(error[3:]).max() < 20.0  # from the third sample on


def test_messages_that_were_overtaken_by_seconds_are_no_jump():
    stamps, arrivals, _ = sampled(20)
    clock = DeviceClock()
    translated(stamps, arrivals, clock)
    late = [clock.translate(stamps[-1] - 3 * S + k * MS, arrivals[-1] + k * MS) for k in range(10)]
    assert clock.jumps == 0
    assert np.abs(np.array(late) - arrivals[-1] + 3 * S).max() < 30 * MS


@pytest.mark.parametrize("wrong_ns", [0, 2**62])
def test_single_damaged_stamps_change_nothing_for_the_others(wrong_ns):
    stamps, arrivals, _ = sampled(20)
    clean = translated(stamps, arrivals)
    clock = DeviceClock()
    out = []
    for index, (stamp, arrival) in enumerate(zip(stamps, arrivals, strict=True)):
        if index % 100 == 50:
            clock.translate(wrong_ns, arrival)
        out.append(clock.translate(stamp, arrival))
    assert out == clean
    assert clock.jumps == 0


def test_a_jump_of_the_hosts_clock_starts_anew():
    clock = DeviceClock()
    translated(*sampled(20)[:2], clock)
    assert clock.translate(DEVICE_NS + 21 * S, HOST_NS + 10 * S) == HOST_NS + 10 * S


def test_offset_and_skew_are_reported():
    clock = DeviceClock()
    assert clock.offset_ns is None
    translated(*sampled(60, skew_ppm=20)[:2], clock)
    assert clock.offset_ns is not None
    assert clock.offset_ns == pytest.approx(HOST_NS - DEVICE_NS + 60 * S * 20e-6, abs=MS)
    assert clock.skew_ppm == pytest.approx(20, abs=2)


def test_memory_is_bounded():
    hull = LowerHull()
    for x in range(4 * MAX_VERTICES):
        hull.add(x * MS, x * x)  # each point is a vertex
    assert len(hull) <= MAX_VERTICES


@pytest.mark.parametrize(("stamps_s", "arrivals_s"), [(-3, 0), (3, 0), (0, 5)], ids=["set back", "set ahead", "pause"])
def test_a_clock_that_is_set_and_a_simulation_that_pauses_are_followed(stamps_s, arrivals_s):
    stamps, arrivals, true = (np.array(times) for times in sampled(40))
    stamps[true > HOST_NS + 20 * S] += stamps_s * S
    late = arrivals_s * S * (arrivals > HOST_NS + 20 * S)
    clock = DeviceClock()
    error = (np.array(translated(stamps.tolist(), (arrivals + late).tolist(), clock)) - true - late) / MS
    assert clock.jumps == 1
    assert np.abs(error[-900 if stamps_s else -700 :]).max() < 1.0


def test_a_pause_right_after_the_first_sample_is_followed():
    stamps, arrivals, true = sampled(20)
    clock = DeviceClock()
    clock.translate(stamps[0] - 10 * MS, arrivals[0] - 5 * S)
    error = (np.array(translated(stamps, arrivals, clock)) - np.array(true)) / MS
    assert np.abs(error[-700:]).max() < 1.0
