"""NVRTC without a GPU, and comparisons."""

import ctypes
from pathlib import Path

import pytest
import torch

from robocache_ros.ops.cuda.kernels import compile_cubin, compile_options, load_source


class Nvrtc:
    """The functions of `cupy.cuda.nvrtc` that the compiler uses, over the pip package's library."""

    def __init__(self, library):
        self._nvrtc = ctypes.CDLL(str(library))

    def _check(self, status):
        if status:
            self._nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(self._nvrtc.nvrtcGetErrorString(status).decode())

    def _text(self, program, what):
        size = ctypes.c_size_t()
        self._check(getattr(self._nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._nvrtc, f"nvrtcGet{what}")(program, text))
        return text.raw

    def createProgram(self, text, name, headers, names):
        program = ctypes.c_void_p()
        strings = ctypes.c_char_p * len(headers)
        arguments = (text.encode(), name.encode(), len(headers), strings(*headers), strings(*names))
        self._check(self._nvrtc.nvrtcCreateProgram(ctypes.byref(program), *arguments))
        return program

    def compileProgram(self, program, options):
        strings = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        self._check(self._nvrtc.nvrtcCompileProgram(program, len(options), strings))

    def getProgramLog(self, program):
        return self._text(program, "ProgramLog").rstrip(b"\0").decode()

    def getPTX(self, program):
        return self._text(program, "PTX")

    def getCUBIN(self, program):
        return self._text(program, "CUBIN")

    def destroyProgram(self, program):
        self._check(self._nvrtc.nvrtcDestroyProgram(ctypes.byref(program)))


@pytest.fixture(scope="session")
def nvrtc():
    """NVRTC from the pip package nvidia-cuda-nvrtc."""
    nvidia = pytest.importorskip("nvidia")
    found = sorted(path for folder in nvidia.__path__ for path in Path(folder).glob("*/lib/libnvrtc.so.*"))
    if not found:
        pytest.skip("no libnvrtc in the installed nvidia packages")
    return Nvrtc(found[-1])


@pytest.fixture(scope="session")
def compile_log(nvrtc):
    """The log of a kernel's compilation: empty without a warning."""

    def log(file, architecture, defines=()):
        cubin, text = compile_cubin(nvrtc, load_source(file, defines), compile_options(architecture, defines))
        assert cubin.startswith(b"\x7fELF")
        return text

    return log


@pytest.fixture(scope="session")
def tick_row(host_library):
    """The row of a tick by its header: `fuse(tasks, streams, row)` and `window(task, row)`."""
    library = host_library(
        """
        #include "tick/row.cuh"
        using namespace robocache;
        extern "C" void fuse(const RowTask* tasks, int streams, float* row) {
          for (int s = 0; s < streams; ++s)
            for (int i = 0; i < tasks[s].width; ++i) row[tasks[s].column + i] = value_at(tasks[s], i);
        }
        extern "C" void window(const WindowTask* task, float* row) {
          for (int i = 0; i < task->width; ++i) row[task->column + i] = window_value(*task, i);
        }
        """
    )
    library.fuse.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    library.window.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return library


# One of each number of threads that a processor has, before and since launches may depend on each other.
ARCHITECTURES = ("sm_80", "sm_86", "sm_90", "sm_120")


@pytest.fixture(
    params=[pytest.param(name, marks=() if name == "sm_90" else pytest.mark.slow) for name in ARCHITECTURES]
)
def architecture(request):
    """A GPU architecture to compile for."""
    return request.param


def same_bits(one, other):
    """Asserts that two arrays or tensors agree in dtype, shape and every bit."""
    one, other = (torch.as_tensor(each).cpu().contiguous() for each in (one, other))
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


@pytest.fixture
def wrong_after_writes():
    """Counts wrong values of `call(data, out=...)` on data that torch wrote just before, launched and in a CUDA graph.

    In the graph launches may begin while those before them still run, be these torch's or the package's own.
    """

    def count(call, inputs, times=50):
        wanted = torch.stack([call(each) for each in inputs])
        data, found = torch.empty_like(inputs[0]), torch.empty_like(wanted)

        def work():
            for i in range(len(inputs)):
                data.copy_(inputs[i])
                call(data, out=found[i])

        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for again in (work, graph.replay):
            for _ in range(times):
                found.zero_()
                again()
                wrong += (found != wanted).sum()
        return int(wrong)

    return count
