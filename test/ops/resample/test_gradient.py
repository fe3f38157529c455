import pytest
import torch

from robocache_ros.alignments import NAMES, alignment
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import resample_trajectories

TIMES = torch.tensor([[0, 10, 10, 30, 35], [5, 0, 20, 40, 41]])
TARGETS = torch.tensor([-1, 0, 5, 10, 20, 33, 50])


@pytest.mark.filterwarnings("ignore:Input #0 requires gradient and is not a double:UserWarning")
@pytest.mark.parametrize("method", [name for name in NAMES if alignment(name).has_gradient])
@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 5])])
def test_gradcheck(method, lengths):
    source = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    # The map is linear in the source, so that a wide step has a rounding error alone: a few float32 roundings at 4.
    assert torch.autograd.gradcheck(
        lambda data: resample_trajectories(data, TIMES, TARGETS, method=method, lengths=lengths, max_gap=25),
        (source,),
        eps=1.0,
        atol=2e-6,
        rtol=0,
    )


def test_the_gradient_of_a_blend_is_shared_by_its_weight():
    source = torch.zeros(1, 2, 1, requires_grad=True)
    resample_trajectories(source, torch.tensor([0, 100]), torch.tensor([25, 200])).backward(
        torch.tensor([[[1.0], [10.0]]])
    )
    assert source.grad.flatten().tolist() == [0.75, 10.25]


def test_sixteen_bit_gradients_are_summed_in_float32():
    source = torch.zeros(1, 1, 1, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.arange(1000)
    resample_trajectories(source, torch.tensor([0]), targets, method="hold").sum().backward()
    assert source.grad.item() == 1000


def test_valid_comes_with_the_gradient():
    source = torch.zeros(1, 2, 1, requires_grad=True)
    values, valid = resample_trajectories(source, torch.tensor([0, 9]), torch.tensor([-1, 3]), return_valid=True)
    assert values.requires_grad
    assert valid.tolist() == [[0, 1]]


@pytest.mark.parametrize("method", [name for name in NAMES if not alignment(name).has_gradient])
def test_methods_without_a_gradient_are_refused(method):
    with pytest.raises(RoboCacheError, match=f"{method} has no gradient"):
        resample_trajectories(torch.zeros(1, 2, 4, requires_grad=True), torch.arange(2), torch.arange(2), method=method)


def test_without_grad_mode_every_method_runs():
    with torch.no_grad():
        source = torch.zeros(1, 2, 4, requires_grad=True)
        assert resample_trajectories(source, torch.arange(2), torch.arange(2), method="angle").shape == (1, 2, 4)
