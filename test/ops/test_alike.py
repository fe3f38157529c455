"""Tensors like those of an earlier call, as torch.compile's guards tell them and, where torch has none, as we do."""

import gc
import weakref

import pytest
import torch

from robocache_ros.ops.cuda import kernels
from robocache_ros.ops.cuda.kernels import like


@pytest.fixture(params=["guards", "plain"], autouse=True)
def implementation(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(kernels, "_Guards", None)


def tensors():
    return [torch.randn(4, 5, 6), torch.arange(5), torch.empty(0, 3), torch.tensor(1.0)]


def test_other_values_are_alike():
    assert like(tensors())(*tensors())


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[:1],
        lambda t: t.transpose(0, 1),
        lambda t: torch.empty(8, 5, 6)[::2],
        lambda t: t.double(),
        lambda t: t.to("meta"),
        lambda t: t.requires_grad_(),
        lambda t: torch.nn.Parameter(t, requires_grad=False),
        lambda t: t.numpy(),
        lambda t: None,
        lambda t: 1.0,
    ],
)
def test_another_kind_of_tensor_or_none_is_not(change):
    is_like = like(tensors())
    first, *others = tensors()
    assert not is_like(change(first), *others)


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_tensors_that_need_a_gradient_are_like_themselves(here, there):
    data = torch.randn(3, requires_grad=True)
    with torch.set_grad_enabled(here):
        is_like = like([data])
        assert is_like(data)
    with torch.set_grad_enabled(there):
        assert not is_like(data.detach())


def test_one_tensor_twice_is_like_two():
    one, other = torch.zeros(3), torch.zeros(3)
    assert like([one, one])(one, one)
    assert like([one, one])(one, other)


def test_tensors_are_not_kept():
    given = tensors()
    kept = [weakref.ref(tensor) for tensor in given]
    is_like = like(given)
    del given
    gc.collect()
    assert [tensor() for tensor in kept] == [None] * 4
    assert is_like(*tensors())


def test_a_torch_with_other_guards_is_served(monkeypatch):
    class Guards:
        @staticmethod
        def TensorGuards(*tensors):
            raise AssertionError("called with names that it does not take")

    monkeypatch.setattr(kernels, "_Guards", Guards)
    assert like(tensors())(*tensors())
