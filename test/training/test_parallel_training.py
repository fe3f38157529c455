"""Several processes train one policy: as one process with a larger batch does, and after an interruption."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.training.process_group import process_group
from test import forked
from test.training import parallel_training
from test.training.conftest import losses, new_trainer
from test.training.parallel_training import JOINED, PROCESSES, RESUMED, STEPS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the processes has found."""
    folder = tmp_path_factory.mktemp("parallel")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = (sys.executable, parallel_training.__file__)
    started = [forked.Popen([*command, str(rank), str(folder)], env=environment) for rank in range(PROCESSES)]
    assert [process.wait() for process in started] == [0] * PROCESSES
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(PROCESSES)]


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two trainings have the same weights and averages, bit by bit."""
    return all(torch.equal(a["weights"][key], b["weights"][key]) for key in a["weights"]) and all(
        torch.equal(x, y) for x, y in zip(a["average"], b["average"], strict=True)
    )


@pytest.mark.slow
def test_processes_train_as_one_with_their_joined_batches(results: list[dict[str, Any]]) -> None:
    separate = new_trainer(batch_size=4 * PROCESSES, **JOINED)

    expected = losses(separate, STEPS)

    means = torch.tensor([each["joined"]["losses"] for each in results]).mean(0).tolist()
    # Sums of float32 in another order. Weights differ more: some gradients are rounding alone, which Adam scales up.
    assert means == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["joined", *RESUMED])
def test_all_processes_have_the_same_weights_and_averages(results: list[dict[str, Any]], case: str) -> None:
    assert all(same(each[case], results[0][case]) for each in results)


@pytest.mark.slow
@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_of_several_processes_has_the_very_same_bits(results: list[dict[str, Any]], case: str) -> None:
    for each in results:
        assert each[f"{case} resumed"]["losses"] == each[case]["losses"]
        assert same(each[f"{case} resumed"], each[case])


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    with process_group("cpu") as group:
        assert (group.rank, group.size, group.first, group.device.type) == (0, 1, True, "cpu")
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("device", "problem"),
    [("tpu", "'tpu' is not auto, cpu or cuda"), ("cuda", "there is no CUDA device; use auto or cpu")],
)
def test_a_device_that_is_not_there_is_refused(device: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RoboCacheError, match=problem), process_group(device):
        pass
