"""The tick's kernels without a GPU: they compile, and a row has the bits of `blend`."""

import ctypes

import numpy as np
import pytest
import torch

from robocache_ros import ops
from robocache_ros.alignments import NAMES, alignment
from robocache_ros.ops.cuda.kernels import compile_cubin, compile_options, load_source, packer
from robocache_ros.ops.tick import RowTask, image_defines


@pytest.mark.parametrize("windows", [0, 1])
def test_the_row_compiles_without_a_warning(nvrtc, architecture, windows):
    options = compile_options(architecture, (f"WINDOWS={windows}",))
    assert compile_cubin(nvrtc, load_source("tick/row.cu"), options)[1] == ""


@pytest.mark.slow
@pytest.mark.parametrize("family", range(6))
def test_images_compile_without_a_warning(nvrtc, family):
    for resize in range(3):
        options = compile_options("sm_90", image_defines(family, resize))
        assert compile_cubin(nvrtc, load_source("tick/image.cu"), options)[1] == ""


@pytest.fixture(scope="module")
def host(host_library):
    library = host_library(
        """
        #include "tick/row.cuh"
        using namespace robocache;
        extern "C" void fuse(const RowTask* tasks, int streams, float* row) {
          for (int s = 0; s < streams; ++s)
            for (int i = 0; i < tasks[s].width; ++i) row[tasks[s].column + i] = value_at(tasks[s], i);
        }
        """
    )
    library.fuse.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    return library


def test_a_row_has_the_bits_of_blend(host):
    rng = np.random.default_rng(5)
    widths = {name: alignment(name).group * (2 + number) for number, name in enumerate(NAMES)}
    sources = {m: torch.from_numpy(rng.normal(size=(9, w)).astype(np.float32)) for m, w in widths.items()}
    for source in sources.values():
        source[4] = torch.tensor(float("nan"))
        source[5, 0] = float("inf")
    row, starts = np.empty(sum(widths.values()), np.float32), np.cumsum([0, *widths.values()])
    for _ in range(200):
        lower, upper = rng.integers(-1, 9, 2)
        weight = np.float32(rng.choice([0, rng.random()]))
        tasks = b"".join(
            packer(RowTask).pack(source.data_ptr(), lower, max(upper, 0), weight, widths[m], start, NAMES.index(m))
            for (m, source), start in zip(sources.items(), starts, strict=False)
        )
        host.fuse(tasks, len(sources), row.ctypes.data)
        selection = (np.array([lower]), np.array([max(upper, 0)]), np.array([weight], np.float32))
        expected = torch.cat([ops.blend(source, *selection, method=m)[0] for m, source in sources.items()])
        assert row.tobytes() == expected.numpy().tobytes()
