"""The headers of the kernels, built by g++, against NumPy and torch: the same bits for every value or for very many."""

import ctypes

import numpy as np
import pytest
import torch

from robocache_ros.alignments import NAMES, alignment

TEXT = """
#include "resample/select.cuh"
using namespace robocache;
#define EACH extern "C" void
EACH wide_half(int n, const f16* a, float* out) { for (int i = 0; i < n; ++i) out[i] = to_float(a[i]); }
EACH wide_bfloat(int n, const bf16* a, float* out) { for (int i = 0; i < n; ++i) out[i] = to_float(a[i]); }
EACH to_half(int n, const float* a, f16* out) { for (int i = 0; i < n; ++i) out[i] = Rounded<f16>::of(a[i]); }
EACH to_bfloat(int n, const float* a, bf16* out) { for (int i = 0; i < n; ++i) out[i] = Rounded<bf16>::of(a[i]); }
#define BLENDS(NAME, GROUP) \\
  EACH NAME(int n, const float* a, const float* b, const float* w, float* out) { \\
    for (int i = 0; i < n; i += GROUP) Alignment<Method::NAME>::blend(a + i, b + i, w[i], out + i); \\
    for (int i = 0; i < n; ++i) out[i] = Rounded<float>::of(out[i]); \\
  }
#define COPIES(NAME, SELECTS)
ALIGNMENTS(BLENDS, COPIES)
EACH stamps(int n, const double* a, int64* out) { for (int i = 0; i < n; ++i) out[i] = nanoseconds(a[i]); }
"""


@pytest.fixture(scope="module")
def host(host_library):
    return host_library(TEXT)


def run(function, out, *arrays):
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*arrays, out)]
    function(len(out), *pointers)
    return out


def many_floats(seed, count):
    """Every pattern of bits may come: subnormals, infinities and NaN among them, and ordinary sizes."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    values[::2] = random.normal(size=len(values[::2])).astype(np.float32)
    return values


@pytest.mark.parametrize(("name", "dtype"), [("wide_half", torch.float16), ("wide_bfloat", torch.bfloat16)])
def test_every_16_bit_float_widens_as_in_torch(host, name, dtype):
    bits = np.arange(65536, dtype=np.uint16)
    got = run(getattr(host, name), np.empty(65536, np.float32), bits)
    expected = torch.from_numpy(bits.view(np.int16)).view(dtype).float().numpy()
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(got[number].view(np.int32), expected[number].view(np.int32))
    assert np.isnan(got[~number]).all()


@pytest.mark.parametrize(
    ("name", "dtype", "nan"), [("to_half", torch.float16, 0x7E00), ("to_bfloat", torch.bfloat16, 0x7FC0)]
)
def test_floats_round_as_in_torch_and_nan_to_the_canonical_one(host, name, dtype, nan):
    ties = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).float().numpy()
    near = np.array([0, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001], np.uint32)
    ties = (ties.view(np.uint32)[:, None] + near).ravel().view(np.float32)
    values = np.concatenate([many_floats(0, 1_000_000), ties])
    got = run(getattr(host, name), np.empty(len(values), np.uint16), values)
    expected = torch.from_numpy(values).to(dtype).view(torch.int16).numpy().view(np.uint16)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(got[number], expected[number])
    assert (got[~number] == nan).all()


@pytest.mark.parametrize("name", [name for name in NAMES if alignment(name).blends])
def test_the_header_and_numpy_blend_to_the_same_bits(host, name):
    before, after = many_floats(1, 400_000), many_floats(2, 400_000)
    weight = np.repeat(np.random.default_rng(3).random(25_000, dtype=np.float32), 16)
    weight[:4096] = np.repeat(np.array([0, 0.5, 1, 1e-30], np.float32), 1024)
    with np.errstate(all="ignore"):
        after[100_000:150_000] = before[100_000:150_000] * np.float32(1.0001)  # small angles
    got = run(getattr(host, name), np.empty(400_000, np.float32), before, after, weight)
    with np.errstate(all="ignore"):
        rows = [values.reshape(-1, 16) for values in (before, after, weight)]
        expected = torch.from_numpy(alignment(name).blend(*rows).ravel())
    expected = expected.masked_fill(expected.isnan(), float("nan")).numpy()
    np.testing.assert_array_equal(got.view(np.int32), expected.view(np.int32))


def test_float_seconds_become_the_same_nanoseconds(host):
    from robocache_ros.ops.resample.inputs import nanoseconds

    random = np.random.default_rng(4)
    odd = [np.nan, np.inf, -np.inf, 1e300, -0.0]
    seconds = np.concatenate([random.normal(size=100_000) * 1e9, random.random(100_000), odd])
    got = run(host.stamps, np.empty(len(seconds), np.int64), seconds)
    np.testing.assert_array_equal(got, nanoseconds(torch.from_numpy(seconds)).numpy())
