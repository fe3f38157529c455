"""Fixtures of the GPU backend: without a GPU, where host code executes its plans, and with one."""

import contextlib
import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from robocache_ros.engine import FusionEngine


@pytest.fixture(scope="session")
def host_tick(host_library):
    """A launch of the tick as host code, by its name and the constants that it is compiled with."""
    text = (Path(__file__).parents[1] / "host_tick.cpp").read_text()
    arguments = {
        "tick_row": (*(ctypes.c_void_p,) * 3, ctypes.c_int, ctypes.c_int),
        "tick_image": (ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
        "tick_cloud": (ctypes.c_void_p,),
    }

    def build(name, *defines):
        launch = getattr(host_library(text, defines), name)
        launch.argtypes = arguments[name]
        return launch

    return build


class EmulatedGraph:
    """A CUDA graph of host launches: those made while it is captured run at each replay."""

    captured = None  # the launches of the graph that is being captured

    def capture_begin(self, **_options):
        self._launches = EmulatedGraph.captured = []

    def capture_end(self):
        EmulatedGraph.captured = None

    def replay(self):
        for launch in self._launches:
            launch()


# More than 50 lines because it has a small stand-in for each call of CUDA.
@pytest.fixture
def emulated(monkeypatch, host_tick):
    """FusionEngine on the GPU backend, with memory, copies and launches of the host."""
    from robocache_ros.engine import engine
    from robocache_ros.engine.backends import gpu
    from robocache_ros.ops import tick
    from robocache_ros.ops.cuda import kernels as memory

    def kernel(_file, name, _parameters, _device, defines=()):
        values = dict(define.split("=", 1) for define in defines)

        def launch(grid, _block, _shared, *arguments):
            assert min(grid) >= 1
            if EmulatedGraph.captured is not None:
                EmulatedGraph.captured.append(lambda: run(*arguments))
            else:
                run(*arguments)

        def run(*arguments):
            if name == "tick_row":
                host_tick(name, "ROW")(*arguments)
            elif name == "tick_image":
                host_tick(name, "IMAGE")(*arguments, int(values["FAMILY"]), int(values["RESIZE"]))
            elif name == "begin_cloud":
                host_tick("tick_cloud", *defines)(*arguments)

        return SimpleNamespace(launch=launch)

    def nothing(*_arguments, **_keywords):
        return contextlib.nullcontext()

    idle = SimpleNamespace(
        wait_stream=nothing, record=nothing, query=lambda: True, synchronize=nothing, wait_event=nothing, cuda_stream=0
    )
    processors = SimpleNamespace(multi_processor_count=8)
    pinned = lambda nbytes: torch.zeros(nbytes, dtype=torch.uint8)  # noqa: E731
    for module in (memory, tick, gpu):
        monkeypatch.setattr(module, "pinned", pinned)
    for module in (tick, gpu):
        monkeypatch.setattr(module, "copy_async", lambda to, source, size, _stream: ctypes.memmove(to, source, size))
    for name in ("_event", "_stream"):
        monkeypatch.setattr(memory, name, lambda *_: idle)
    monkeypatch.setattr(tick, "kernel", kernel)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", EmulatedGraph)
    monkeypatch.setattr(torch.cuda, "stream", nothing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: idle)
    monkeypatch.setattr(torch.cuda, "synchronize", nothing)
    monkeypatch.setattr(torch.cuda, "device", nothing)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: processors)

    def make(layout, capacities, _device, _unbounded, options):
        return gpu.GpuBackend(layout, capacities, torch.device("cpu"), options)

    def build(spec, **options):
        with monkeypatch.context() as patched:
            patched.setattr(engine, "make_backend", make)
            return FusionEngine(spec, "cuda", **options)

    return build


@pytest.fixture
def delay_uploads(monkeypatch):
    """Keeps the copies of the newest engine, on a real GPU, waiting for a while, from when it is called."""
    from robocache_ros.engine.backends import gpu

    streams = []

    def new_stream(device):
        streams.append(torch.cuda.Stream(device))
        return streams[-1]

    def delay():
        for stream in streams[-2:]:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(100_000_000)

    monkeypatch.setattr(gpu, "new_stream", new_stream)
    return delay
