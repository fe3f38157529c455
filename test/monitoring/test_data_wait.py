"""The data-wait meter: with marks worked out by hand, on the CPU, and with CUDA events."""

from __future__ import annotations

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.monitoring import DataWaitMeter
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
