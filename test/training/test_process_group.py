"""The processes of a training."""

from __future__ import annotations

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.training.process_group import process_group


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    with process_group("cpu") as group:
        assert (group.rank, group.size, group.first, group.device.type) == (0, 1, True, "cpu")
        assert not torch.distributed.is_initialized()


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(RoboCacheError, match="'tpu' is not auto, cpu or cuda"), process_group("tpu"):
        pass


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(RoboCacheError, match="there is no CUDA device; use auto or cpu"), process_group("cuda"):
        pass
