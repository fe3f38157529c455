import logging

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import installation, print_installation_info, self_test, set_device


def test_without_a_gpu_auto_is_the_cpu_and_logs_it_and_cuda_is_an_error(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with caplog.at_level(logging.INFO):
        assert set_device() == torch.device("cpu")
    assert caplog.messages == ["device: auto is the CPU here: PyTorch sees no CUDA device"]
    with pytest.raises(RoboCacheError, match="'cuda' is not available: PyTorch sees no CUDA device"):
        set_device("cuda")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:-1", "mps", ""])
def test_a_device_by_another_name_is_refused(name):
    with pytest.raises(RoboCacheError, match="is not one of auto, cpu, cuda, cuda:<index>"):
        set_device(name)


def test_missing_cupy_is_named_with_the_package_to_install(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(__import__("sys").modules, "cupy.cuda", None)
    assert "pip install cupy-cuda" in installation.missing_for_cuda()


def test_the_installation_is_printed(capsys):
    print_installation_info()
    printed = capsys.readouterr().out
    for word in ("robocache_ros", "PyTorch", "CuPy", "CUDA backend", "kernels kept in"):
        assert word in printed


def test_the_self_test_passes_and_prints_a_row_for_each_operation(capsys):
    assert self_test("cpu")
    printed = capsys.readouterr().out
    for word in ("resample slerp float32", "fuse 3 streams", "voxelize mean", "image rgb8", "Passed: all bits"):
        assert word in printed
