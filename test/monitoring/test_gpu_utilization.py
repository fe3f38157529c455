"""The utilisation monitor, with an NVML of its own."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.monitoring import GPUUtilization, GPUUtilizationMonitor


class FakeNvml:
    """The functions of pynvml that the monitor uses. `taken` is set when all values have been read."""

    def __init__(self, values, gpus=("GPU-aa11", "GPU-bb22")):
        self.values, self.gpus = iter(values), gpus
        self.taken = threading.Event()
        self.open = 0
        self.read: list[int] = []

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return self.gpus[handle]

    def nvmlDeviceGetUtilizationRates(self, handle):
        self.read.append(handle)
        if len(self.read) == 1:
            return SimpleNamespace(gpu=0)  # start looks whether it works
        value = next(self.values, None)
        if value is None:
            self.taken.set()
            return SimpleNamespace(gpu=50)
        if value < 0:
            self.taken.set()
            raise RuntimeError("GPU is lost")
        return SimpleNamespace(gpu=value)


def monitor(nvml, **options):
    return GPUUtilizationMonitor(nvml=nvml, **{"interval_s": 1e-4, "startup_s": 0.0, **options})


@pytest.mark.parametrize(
    ("samples", "options", "expected"),
    [
        ([10, *range(81, 100), 100], {}, GPUUtilization((10 + sum(range(81, 100)) + 100) / 21, 81.0, 100.0, 21)),
        ([10, *[90] * 19], {}, GPUUtilization(86.0, 10.0, 90.0, 20)),
        ([0, 0, 3, 20, 90, 0, 80], {"interval_s": 0.5, "startup_s": 1.0}, GPUUtilization(170 / 3, 0.0, 90.0, 3)),
        ([0], {}, GPUUtilization(0.0, 0.0, 0.0, 0)),
    ],
    ids=["all count", "a twentieth", "not before the first work and in the startup", "no work"],
)
def test_statistics_are_those_of_the_samples(samples, options, expected):
    counted = monitor(FakeNvml([]), **options)
    for percent in samples:
        counted.add(percent)
    assert (counted.result, counted.latest) == (expected, samples[-1])


@pytest.mark.parametrize("context", [False, True])
def test_the_thread_samples_between_start_and_stop(context):
    nvml = FakeNvml([0, 0, 60, 70, 80])
    running = monitor(nvml)
    if context:
        with running:
            assert nvml.taken.wait(60)
    else:
        assert running.start() is running
        assert nvml.taken.wait(60)
        assert running.stop() == running.result
    assert (running.result.max, nvml.open) == (80.0, 0)
    assert running.result.samples >= 3


def test_an_error_while_sampling_is_raised_by_stop():
    nvml = FakeNvml([60, -1])
    running = monitor(nvml).start()
    assert nvml.taken.wait(60)
    with pytest.raises(RoboCacheError, match=r"^GPU 0: GPU is lost; check nvidia-smi$"):
        running.stop()
    assert nvml.open == 0


def test_an_error_of_the_body_of_a_context_is_not_replaced_by_one_of_nvml():
    nvml = FakeNvml([60, -1])  # the second one is an error

    def body():
        with monitor(nvml):
            assert nvml.taken.wait(60)
            raise KeyError("of the body")

    with pytest.raises(KeyError, match="of the body"):
        body()
    assert nvml.open == 0


@pytest.mark.parametrize(("visible", "handle"), [("", 1), ("1,0", 0), ("GPU-aa11,GPU-bb", 1)])
def test_gpus_are_numbered_as_cuda_sees_them(visible, handle, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = FakeNvml([])
    with monitor(nvml, device=1):
        assert nvml.taken.wait(60)
    assert set(nvml.read) == {handle}


@pytest.mark.parametrize("visible", ["", "0", "GPU-cc,GPU-dd,GPU-ee"])
def test_a_gpu_that_is_not_there_is_named(visible, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = FakeNvml([])
    with pytest.raises(RoboCacheError, match=r"^GPU 2: .*; "):
        monitor(nvml, device=2).start()
    assert nvml.open == 0


def test_a_missing_driver_is_named():
    class NoDriver(FakeNvml):
        def nvmlInit(self):
            raise RuntimeError("NVML Shared Library Not Found")

    with pytest.raises(RoboCacheError, match=r"^GPU 0: NVML Shared Library Not Found; check nvidia-smi$"):
        monitor(NoDriver([])).start()


def test_stop_before_start_and_start_twice_are_errors():
    nvml = FakeNvml([])
    once = monitor(nvml)
    with pytest.raises(RoboCacheError, match="is not started"):
        once.stop()
    with once, pytest.raises(RoboCacheError, match="is already started"):
        once.start()
