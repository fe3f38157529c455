"""NVRTC without a GPU."""

import ctypes
from pathlib import Path

import pytest
import torch


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


# One of each number of threads that a processor has, before and since launches may depend on each other.
ARCHITECTURES = ("sm_80", "sm_86", "sm_90", "sm_120")


@pytest.fixture(
    params=[pytest.param(name, marks=() if name == "sm_90" else pytest.mark.slow) for name in ARCHITECTURES]
)
def architecture(request):
    """A GPU architecture to compile for."""
    return request.param


@pytest.fixture
def wrong_after():
    """Counts the values of `found` that differ from `wanted` when `work` wrote them, launched and in a CUDA graph.

    In the graph launches may begin while those before them still run, be these torch's or the package's own.
    """

    def count(work, found, wanted, times=50):
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
