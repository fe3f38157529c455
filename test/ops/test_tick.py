"""The tick's kernels without a GPU: they compile, plans are packed as they read them, and a row has blend's bits."""

import ctypes
import struct

import numpy as np
import pytest
import torch

from robocache_ros import ops
from robocache_ros.ops.arithmetic import METHODS
from robocache_ros.ops.cuda import tick
from robocache_ros.ops.cuda.compiler import compile_cubin, compile_options, load_source

ARCHITECTURES = ("sm_75", "sm_90")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_row_compiles_without_a_warning(nvrtc, architecture):
    assert compile_cubin(nvrtc, load_source("tick_row.cu"), compile_options(architecture))[1] == ""


@pytest.mark.parametrize("family", range(6))
def test_images_compile_without_a_warning(nvrtc, family):
    for resize in range(3):
        options = compile_options("sm_90", (f"FAMILY={family}", f"RESIZE={resize}"))
        assert compile_cubin(nvrtc, load_source("tick_image.cu"), options)[1] == ""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("mode", "features"), [(0, 0), (1, 0), (2, 1), (2, 4), (3, 2)])
def test_clouds_compile_without_a_warning(nvrtc, architecture, mode, features):
    options = compile_options(architecture, (f"MODE={mode}", f"FEATURES={features}"))
    assert compile_cubin(nvrtc, load_source("tick_cloud.cu"), options)[1] == ""


@pytest.fixture(scope="module")
def host(host_library):
    library = host_library(
        """
        #include "row.cuh"
        using namespace robocache;
        extern "C" void fuse(const RowTask* tasks, int streams, float* row) {
          for (int s = 0; s < streams; ++s)
            for (int i = 0; i < tasks[s].width; ++i) row[tasks[s].column + i] = value_at(tasks[s], i);
        }
        extern "C" int row_task() { return sizeof(RowTask); }
        extern "C" int row_plan() { return sizeof(RowPlan); }
        """
    )
    library.fuse.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    return library


@pytest.fixture(scope="module")
def layouts(host_library):
    """Sizes of the image and cloud tasks, as C++ has them."""
    return host_library(
        """
        #include "plan.cuh"
        using namespace robocache;
        extern "C" int target() { return sizeof(Target); }
        extern "C" int image_task() { return sizeof(ImageTask); }
        extern "C" int cloud_task() { return sizeof(CloudTask); }
        """
    )


def test_plans_are_packed_as_the_kernels_read_them(host, layouts):
    assert tick.ROW_TASK.size == host.row_task()
    assert tick.ROW_PLAN.size == host.row_plan()
    assert tick.IMAGE_TASK.size == layouts.image_task()
    assert tick.CLOUD_TASK.size == layouts.cloud_task()
    assert layouts.target() == struct.calcsize("@PPqii")


def test_a_row_has_the_bits_of_blend(host):
    rng = np.random.default_rng(5)
    widths = {"linear": 7, "slerp": 8, "angle": 3, "hold": 2, "nearest": 1}
    sources = {m: torch.from_numpy(rng.normal(size=(9, w)).astype(np.float32)) for m, w in widths.items()}
    for source in sources.values():
        source[4] = torch.tensor(float("nan"))
        source[5, 0] = float("inf")
    row, starts = np.empty(sum(widths.values()), np.float32), np.cumsum([0, *widths.values()])
    for _ in range(200):
        lower, upper = rng.integers(-1, 9, 2)
        weight = np.float32(rng.choice([0, rng.random()]))
        tasks = b"".join(
            tick.ROW_TASK.pack(source.data_ptr(), lower, max(upper, 0), weight, widths[m], start, METHODS.index(m))
            for (m, source), start in zip(sources.items(), starts, strict=False)
        )
        host.fuse(tasks, len(sources), row.ctypes.data)
        chosen = (np.array([lower]), np.array([max(upper, 0)]), np.array([weight], np.float32))
        expected = torch.cat([ops.blend(source, *chosen, method=m)[0] for m, source in sources.items()])
        assert row.tobytes() == expected.numpy().tobytes()
