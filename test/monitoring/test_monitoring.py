"""The data-wait meter, with marks worked out by hand and on devices; the utilisation of a scripted NVML; Lightning."""

from __future__ import annotations

import threading
import warnings
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.monitoring import DataWaitMeter, GPUUtilization, GPUUtilizationMonitor
from robocache_ros.monitoring.data_wait import MAX_OPEN


class Scripted:
    """Marks at given times, in s. The device has reached those up to `now`."""

    def __init__(self, *times, now=1e9):
        self._times = iter(times)
        self.now = now

    def mark(self):
        return next(self._times)

    def reached(self, mark):
        return mark <= self.now

    def seconds(self, first, second):
        self.now = max(self.now, second)
        return second - first


def test_waits_are_summed_from_the_first_batch_to_the_last_step():
    # begin, end of three waits; the first, of 5 s, is left out; then the end of the last step
    meter = DataWaitMeter(marks=Scripted(0, 5, 10, 11, 20, 20, 30))
    batches = list(meter.batches(["a", "b", "c"]))
    result = meter.result()
    assert batches == ["a", "b", "c"]
    assert (result.waited_s, result.total_s, result.steps) == (1, 25, 2)
    assert result.share == 1 / 25


def test_a_wait_can_be_measured_as_a_context_and_the_first_one_counts_without_skip():
    meter = DataWaitMeter(skip=0, marks=Scripted(0, 1, 4, 6))
    for _ in range(2):
        with meter.waiting():
            pass
    assert (meter.result().waited_s, meter.result().total_s) == (3, 6)


def test_waits_that_the_device_has_not_reached_are_read_later():
    marks = Scripted(*range(2 * MAX_OPEN + 20), now=-1)
    meter = DataWaitMeter(skip=0, marks=marks)
    for _ in range(MAX_OPEN):
        with meter.waiting():
            pass
    assert marks.now == -1  # nothing has waited for the device
    for _ in range(5):  # memory is bounded: the oldest are read
        with meter.waiting():
            pass
    assert 0 < marks.now < 20
    assert meter.result().waited_s == MAX_OPEN + 5


def test_on_the_cpu_it_is_the_time_in_next_and_a_share_of_zero_before():
    meter = DataWaitMeter("cpu", skip=0)
    meter.end()  # without a begin
    assert (meter.result().share, meter.result().steps) == (0, 0)
    list(meter.batches(range(3)))
    result = meter.result()
    assert 0 < result.waited_s <= result.total_s
    assert result.steps == 3


@pytest.mark.gpu
def test_a_busy_gpu_does_not_wait_while_the_host_does():
    spin = 100_000_000  # cycles: some 50 ms
    meter = DataWaitMeter("cuda")
    for _ in meter.batches(range(6)):
        torch.cuda._sleep(spin)
    busy = meter.result()
    assert busy.share < 0.01
    assert busy.total_s > 0.05


@pytest.mark.gpu
def test_a_gpu_without_work_waits():
    meter = DataWaitMeter("cuda")
    for _ in meter.batches(range(6)):
        torch.cuda._sleep(1_000_000)
        torch.cuda.synchronize()  # so that the loop asks for the next batch when nothing is left to do
        sum(range(300_000))  # the loader is slow
    assert meter.result().total_s > meter.result().waited_s > 0


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RoboCacheError, match="device: cuda:1 is not there, torch finds no CUDA device; use cpu"):
        DataWaitMeter("cuda:1")


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
    nvml = Mock(nvmlInit=Mock(side_effect=RuntimeError("NVML Shared Library Not Found")))
    with pytest.raises(RoboCacheError, match=r"^GPU 0: NVML Shared Library Not Found; check nvidia-smi$"):
        monitor(nvml).start()


def test_stop_before_start_and_start_twice_are_errors():
    nvml = FakeNvml([])
    once = monitor(nvml)
    with pytest.raises(RoboCacheError, match="is not started"):
        once.stop()
    with once, pytest.raises(RoboCacheError, match="is already started"):
        once.start()


@pytest.fixture
def lightning():
    with warnings.catch_warnings():  # of what Lightning imports
        warnings.simplefilter("ignore")
        return pytest.importorskip("lightning.pytorch")


@pytest.mark.filterwarnings("ignore")  # of Lightning
def test_the_callback_measures_and_logs(tmp_path, lightning):
    from robocache_ros.monitoring.lightning_callback import TrainingMonitor

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    monitor = TrainingMonitor(every=2)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[monitor], default_root_dir=tmp_path, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Regression(), torch.utils.data.DataLoader(torch.rand(16, 3), batch_size=2))
    assert monitor.data_wait.steps == 14  # between 16 batches, without the first
    assert 0 <= float(trainer.callback_metrics["data_wait_share"]) < 1
    assert monitor.gpu_utilization is None


@pytest.mark.usefixtures("lightning")
@pytest.mark.filterwarnings("ignore")  # of Lightning
def test_a_driver_that_fails_does_not_fail_the_training():
    from robocache_ros.monitoring.lightning_callback import TrainingMonitor

    monitor = TrainingMonitor()
    monitor._monitor = Mock(stop=Mock(side_effect=RoboCacheError("GPU 0: lost; check nvidia-smi")))
    monitor.on_train_end()
    assert monitor.gpu_utilization is None
