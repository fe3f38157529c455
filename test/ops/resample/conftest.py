"""The kernels of resampling as host code: a plan's launch runs on the CPU, and its results are compared bit for bit."""

from functools import partial
from pathlib import Path

import pytest
import torch

from robocache_ros.ops.resample.cuda import launch_arguments, make_plan, plan_keys
from robocache_ros.ops.resample.inputs import check_streams, limit_ns
from robocache_ros.ops.resample.resample import fuse
from test.ops.conftest import same_bits

U8 = torch.uint8


# C++ that runs the blocks of resample.cu and blend.cu one thread after the other.
HOST_TEXT = Path(__file__).with_name("host_resample.cpp").read_text()


def emulate(host_library, streams, targets, dtype=None, out=None, marked=True):
    """`fuse` on the CPU by the kernel's plan and headers; the output is filled with other values first."""
    shape = check_streams(streams, targets, dtype, out)
    marks = (shape.batches, shape.targets, len(streams))
    out = torch.empty((*marks[:2], shape.width), dtype=shape.dtype) if out is None else out
    valid, age = torch.full(marks, 99, dtype=U8), torch.full(marks, 99)
    out.view(U8).fill_(0xAB)
    addresses = [
        (
            s.data.data_ptr(),
            s.times.data_ptr(),
            0 if s.lengths is None else s.lengths.data_ptr(),
            *(limit_ns("limit", limit, s.times.dtype) for limit in (s.max_gap, s.max_age)),
        )
        for s in streams
    ]
    for part, key in plan_keys(streams, targets, shape, out.data_ptr() & 15, processors=4, marked=marked):
        plan = make_plan(key)
        assert plan.shared <= 48 * 1024
        packed = plan.layout.pack(*launch_arguments(plan, addresses[part], targets, out, valid, age))
        failed = host_library(HOST_TEXT, plan.defines).run(packed, plan.grid, plan.shared)
        assert not failed, "wrote beyond the shared memory that was planned for"
    return out, valid, age


@pytest.fixture
def emulated(host_library):
    """`fuse` by the kernels, run on the CPU."""
    return partial(emulate, host_library)


def on_gpu(tensor):
    """A copy on the GPU at the same distance from a multiple of 16 bytes."""
    if tensor is None:
        return None
    skew = tensor.storage_offset()
    padded = torch.empty(tensor.numel() + skew, dtype=tensor.dtype, device="cuda")
    return padded[skew:].view(tensor.shape).copy_(tensor)


def cuda(streams, targets, dtype=None, out=None):
    """`fuse` on the GPU."""
    moved = [s._replace(data=on_gpu(s.data), times=on_gpu(s.times), lengths=on_gpu(s.lengths)) for s in streams]
    out = None if out is None else on_gpu(out).view(U8).fill_(0xAB).view(out.dtype)
    return [result.cpu() for result in fuse(moved, on_gpu(targets), dtype=dtype, out=out)]


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    """`fuse` by the kernels, run on the CPU and on a GPU."""
    return cuda if request.param == "cuda" else request.getfixturevalue("emulated")


def values(dtype, *shape, seed=0):
    """Random data of a dtype and shape."""
    random = torch.Generator().manual_seed(seed)
    if dtype == U8:
        return torch.randint(0, 256, shape, generator=random, dtype=U8)
    return torch.randn(shape, generator=random).to(dtype)


def rising(batches, size, seed=1, step=10_000_000):
    """(batches, size) int64 times that rise by a random step."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(1, 2 * step, (batches, size), generator=random).cumsum(1)


def all_same_bits(got, expected):
    for one, other in zip(got, expected, strict=True):
        same_bits(one, other)


@pytest.fixture
def check(backend):
    """Asserts that the kernels give the bits of the CPU backend."""

    def compare(streams, targets, dtype=None):
        all_same_bits(backend(streams, targets, dtype), fuse(streams, targets, dtype=dtype))

    return compare
