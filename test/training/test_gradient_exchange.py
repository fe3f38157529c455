"""Gradients of several processes: their mean, in groups, whatever the order in which they are complete."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from robocache_ros.training.gradient_exchange import GradientExchange
from test import forked
from test.training import exchange_process
from test.training.exchange_process import PROCESSES, Branches


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes has found."""
    folder = tmp_path_factory.mktemp("exchange")
    command = (sys.executable, exchange_process.__file__)
    started = [forked.Popen([*command, str(rank), str(folder)]) for rank in range(PROCESSES)]
    assert [process.wait() for process in started] == [0] * PROCESSES
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(PROCESSES)]


def test_all_processes_begin_with_the_weights_of_the_first(results: list[dict[str, Any]]) -> None:
    expected = list(Branches(0).parameters())

    for found in results:
        assert all(torch.equal(a, b) for a, b in zip(found["weights"], expected, strict=True))
        assert found["scale"] == 1


def test_gradients_are_those_of_distributed_data_parallel(results: list[dict[str, Any]]) -> None:
    for found in results:
        for name, gradient in found["ours"].items():
            expected = found["peer"][name]
            assert torch.equal(gradient, torch.zeros_like(gradient) if expected is None else expected), name


def test_gradients_of_a_pass_that_is_not_the_last_stay_in_their_process(results: list[dict[str, Any]]) -> None:
    assert not torch.equal(results[0]["alone"], results[1]["alone"])


@pytest.fixture
def group_of_one() -> Iterator[None]:
    """A group of one process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(("group_bytes", "groups"), [(1, 6), (1 << 20, 1)])
def test_groups_have_about_the_size_that_is_given(group_bytes: int, groups: int) -> None:
    parameters = list(Branches(0).parameters())

    found = GradientExchange(parameters, group_bytes=group_bytes).groups

    assert [id(each) for group in found for each in group] == [id(each) for each in reversed(parameters)]
    assert len(found) == groups


@pytest.mark.usefixtures("group_of_one")
def test_parameters_that_are_not_trained_are_left_out() -> None:
    network = Branches(0)
    network.first.requires_grad_(False)

    found = GradientExchange(list(network.parameters())).groups

    assert len(found[0]) == 4
