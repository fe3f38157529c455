"""The values of windows: the CPU against the oracle, and the kernel, run on the CPU, against the CPU bit for bit."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.ops.cuda.kernels import packer
from robocache_ros.ops.tick import WindowTask
from robocache_ros.ops.window import select_window, window_values
from robocache_ros.spec.stream import REDUCTIONS

ROUNDING = 1e-7  # of the largest value: one rounding to float32, and smaller ones of sums in float64


def by_kernel(tick_row, source, rows, count, reduce):
    """The values of one window by the kernel's header."""
    slots = rows[:count].astype(np.int32)
    width = source.shape[1] if reduce else len(rows) * source.shape[1]
    out = np.full(width, 7, np.float32)
    reduction = 1 + REDUCTIONS.index(reduce) if reduce else 0
    numbers = (len(slots), source.shape[1], width, 0, reduction, 0)
    task = packer(WindowTask).pack(source.ctypes.data, slots.ctypes.data, *numbers)
    tick_row.window(task, out.ctypes.data)
    return out


@st.composite
def windows(draw):
    size, dim, most = draw(st.integers(1, 20)), draw(st.integers(1, 5)), draw(st.integers(1, 12))
    counts = draw(st.lists(st.integers(0, min(most, size)), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = np.full((len(counts), most), -1)
    for row, count in zip(rows, counts, strict=True):
        row[:count] = rng.permutation(size)[:count]
    scale = draw(st.sampled_from([1.0, 1e30, 1e-42]))
    return (rng.normal(size=(size, dim)) * scale).astype(np.float32), rows, np.array(counts)


def reduced(samples, reduce):
    """The reference: (D,) mean, rms, max or min of (m, D) float64 samples; zeros where there is none."""
    if not len(samples):
        return np.zeros(samples.shape[1])
    return np.sqrt((samples**2).mean(axis=0)) if reduce == "rms" else getattr(samples, reduce)(axis=0)


@settings(max_examples=80)
@given(windows(), st.sampled_from(["", *REDUCTIONS]))
def test_the_cpu_follows_the_oracle(window, reduce):
    source, rows, counts = window
    got = window_values(torch.from_numpy(source), rows, counts, reduce).double().numpy()
    for tick, count in enumerate(counts):
        samples = source[rows[tick, :count]].astype(np.float64)
        if not reduce:
            assert got[tick, :count].tolist() == samples.tolist()
            assert not got[tick, count:].any()
        else:
            largest = np.abs(samples).max(initial=0)
            atol = ROUNDING * largest + 1e-45  # or half a step of the smallest float32
            np.testing.assert_allclose(got[tick], reduced(samples, reduce), rtol=0, atol=atol)


@settings(max_examples=100)
@given(windows(), st.sampled_from(["", *REDUCTIONS]), st.booleans())
def test_the_kernel_has_the_bits_of_the_cpu(tick_row, window, reduce, special):
    source, rows, counts = window
    if special:
        source[0, 0], source[-1] = np.nan, np.inf
    expected = window_values(torch.from_numpy(source), rows, counts, reduce).flatten(1).numpy()
    for tick, count in enumerate(counts):
        assert by_kernel(tick_row, source, rows[tick], count, reduce).tobytes() == expected[tick].tobytes()


def test_a_sample_that_had_not_arrived_is_not_in_the_window():
    stamps, arrivals = np.array([100, 110, 120, 130, 140]), np.array([105, 200, 125, 135, 145])
    late = {"arrivals_ns": arrivals, "deadlines_ns": np.array([150])}
    found = select_window(stamps, np.array([99]), np.array([130]), 3, **late)
    assert (found.rows[0].tolist(), found.age_ns[0].tolist(), found.dropped) == ([0, 2, 3], [30, 10, 0], 0)


@given(
    st.lists(st.integers(0, 60), max_size=30, unique=True),
    st.lists(st.integers(-5, 70), min_size=1, max_size=6, unique=True),
    st.integers(1, 8),
)
def test_every_selection_is_that_of_a_search_through_all_samples(stamps, ticks, samples):
    stamps, ticks = np.array(sorted(stamps), np.int64), np.array(sorted(ticks), np.int64)
    starts = np.array([ticks[0] - 20, *ticks[:-1]])
    got = select_window(stamps, starts, ticks, samples)
    dropped = 0
    for number, (start, tick) in enumerate(zip(starts, ticks, strict=True)):
        inside = [stamp for stamp in stamps.tolist() if start < stamp <= tick]
        used, count = inside[-samples:], got.counts[number]  # the newest
        assert stamps[got.rows[number, :count]].tolist() == used
        assert got.age_ns[number, :count].tolist() == [tick - stamp for stamp in used]
        assert (got.rows[number, count:] == -1).all()
        assert (got.age_ns[number, count:] == -1).all()
        dropped += len(inside) - len(used)
    assert got.dropped == dropped
