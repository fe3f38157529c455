"""Resampling in slabs from host memory: the bits of one call on the device."""

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import resample_from_host, resample_trajectories

SECOND = 1_000_000_000


def trajectories(each_times):
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(37, 20, 5, generator=generator)
    times = torch.arange(20) * (SECOND // 20)
    if each_times:
        times = times + torch.randint(0, SECOND // 40, (37, 20), generator=generator)
    return source, times, torch.arange(15) * (SECOND // 15)


@pytest.mark.gpu
@pytest.mark.parametrize("each_times", [False, True], ids=["one timeline", "own times"])
@pytest.mark.parametrize("slab_bytes", [1, 4 * 20 * 5 * 4, 1 << 20])
def test_slabs_have_the_bits_of_one_call(each_times, slab_bytes):
    source, times, targets = trajectories(each_times)
    options = {"max_gap": SECOND // 15, "max_age": SECOND // 10}
    found = resample_from_host(source.pin_memory(), times.pin_memory(), targets, slab_bytes=slab_bytes, **options)
    assert found.cpu().equal(resample_trajectories(source, times, targets, **options))


def test_a_device_without_slabs_is_refused():
    with pytest.raises(RoboCacheError, match="device: cpu is not a CUDA device; use resample_trajectories"):
        resample_from_host(*trajectories(False), "cpu")
