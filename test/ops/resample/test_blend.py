"""Blends of chosen rows: the CPU backend by hand, and blend.cu with its bits, run on the CPU and on a GPU."""

import numpy as np
import pytest
import torch

from robocache_ros.alignments import NAMES, alignment
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda.kernels import packer
from robocache_ros.ops.resample.cuda import BlendArguments, blend_defines
from robocache_ros.ops.resample.resample import blend


def rows(lower, upper, weight):
    return torch.tensor(lower), torch.tensor(upper), torch.tensor(weight, dtype=torch.float32)


def test_linear_lies_between_the_two_rows():
    source = torch.tensor([[0.0, 10.0], [4.0, 20.0]])
    assert blend(source, *rows([0], [1], [0.25]), method="linear").tolist() == [[1.0, 12.5]]


def test_a_row_with_weight_zero_is_copied_even_if_its_neighbour_is_nan():
    source = torch.tensor([[1.5], [float("nan")]])
    assert blend(source, *rows([0, 0], [1, 0], [0.0, 0.7]), method="linear").tolist() == [[1.5], [1.5]]


def test_no_row_gives_zeros():
    source = torch.full((2, 3), float("nan"))
    assert blend(source, *rows([-1], [-1], [0.0]), method="hold").tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("method", ["linear", "slerp", "angle"])
def test_without_an_upper_row_the_lower_one_is_copied_whatever_the_weight(method):
    source = torch.arange(12.0).view(3, 4)
    got = blend(source, *rows([0, 1], [-1, -1], [0.5, 1.0]), method=method)
    assert torch.equal(got, source[:2])


def test_an_empty_buffer_gives_zeros():
    assert blend(torch.empty(0, 2), *rows([-1], [-1], [0.0]), method="linear").tolist() == [[0, 0]]


def test_angle_crosses_the_wrap_and_stays_in_range():
    source = torch.tensor([[3.0], [-3.0]])
    got = blend(source, *rows([0, 0], [1, 1], [0.25, 0.75]), method="angle")
    gap = 2 * np.pi - 6
    np.testing.assert_allclose(got[:, 0], [3 + gap / 4, -3 - gap / 4], rtol=0, atol=3e-7)  # one rounding at 3


def test_an_angle_of_several_turns_is_not_folded():
    source = torch.tensor([[7.0], [7.5]])
    assert blend(source, *rows([0], [1], [0.5]), method="angle").tolist() == [[7.25]]


def test_slerp_halves_a_right_angle():
    source = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    got = blend(source, *rows([0], [1], [0.5]), method="slerp")
    np.testing.assert_allclose(got[0], [0.5**0.5, 0.5**0.5, 0, 0], rtol=1e-7)


def test_slerp_takes_the_shorter_arc():
    source = torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    assert blend(source, *rows([0], [1], [0.3]), method="slerp").tolist() == [[1.0, 0, 0, 0]]


def test_sixteen_bit_values_are_rounded_once_at_the_end():
    source = torch.tensor([[1.0], [1.0078125]], dtype=torch.bfloat16)
    got = blend(source, *rows([0], [1], [0.5]), method="linear")  # halfway between two bfloat16: to the even one
    assert got.dtype == torch.bfloat16
    assert got.tolist() == [[1.0]]


def test_nan_from_arithmetic_has_one_pattern_of_bits():
    source = torch.tensor([[float("inf")], [float("inf")], [-float("nan")]])
    got = blend(source, *rows([0, 0], [1, 2], [0.5, 0.5]), method="linear")
    assert got.view(torch.int32).tolist() == [[0x7FC00000], [0x7FC00000]]


def test_out_is_filled_and_returned():
    out = torch.empty(1, 1)
    assert blend(torch.ones(1, 1), *rows([0], [0], [0.0]), method="hold", out=out) is out
    assert out.item() == 1


def test_numpy_rows_are_accepted():
    got = blend(
        torch.tensor([[2], [3]], dtype=torch.uint8),
        np.array([1]),
        np.array([1]),
        np.zeros(1, np.float32),
        method="hold",
    )
    assert got.tolist() == [[3]]


@pytest.mark.parametrize(
    ("source", "method", "message"),
    [
        (torch.ones(2, 3), "slerp", "quaternions of 4 columns"),
        (torch.ones(2, 3, dtype=torch.uint8), "linear", "cannot be aligned by linear"),
        (torch.ones(2, 3), "cubic", "'cubic' is not one of"),
        (torch.ones(2), "linear", "expected 2 dimensions"),
    ],
)
def test_a_wrong_source_is_refused_with_the_reason(source, method, message):
    with pytest.raises(RoboCacheError, match=message):
        blend(source, *rows([0], [1], [0.5]), method=method)


def test_a_row_past_the_end_is_refused():
    with pytest.raises(RoboCacheError, match="below 2"):
        blend(torch.ones(2, 1), *rows([0], [2], [0.5]), method="linear")


def emulated_blend(host_library, text, source, lower, upper, weight, method):
    count, width, rows = len(lower), source.shape[1], 16
    out = torch.empty(count, width, dtype=source.dtype)
    skews = (source.data_ptr() & 15, out.data_ptr() & 15)
    library = host_library(text, blend_defines(method, source.dtype, width, skews, rows))
    pointers = [tensor.data_ptr() for tensor in (source, out, lower, upper, weight)]
    fields = (*pointers, count, len(source), width, rows)
    library.run_blend(packer(BlendArguments).pack(*fields), -(-count // rows))
    return out


@pytest.mark.parametrize("where", ["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("width", [4, 7])
@pytest.mark.parametrize("method", NAMES)
def test_blend_of_chosen_rows(values, assert_same_bits, host_library, host_text, method, width, where):
    source = values(torch.bfloat16, 11, width * alignment(method).group)
    random = torch.Generator().manual_seed(5)
    lower, upper = (torch.randint(-1, 11, (70,), generator=random) for _ in range(2))
    weight = torch.rand(70, generator=random)
    weight[::7] = 0
    if where == "cuda":
        got = blend(*(tensor.cuda() for tensor in (source, lower, upper, weight)), method=method).cpu()
    else:
        got = emulated_blend(host_library, host_text, source, lower, upper, weight, method)
    assert_same_bits([got], [blend(source, lower, upper, weight, method=method)])
