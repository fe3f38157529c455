"""blend.cu against the CPU backend, bit for bit: run on the CPU, and on a GPU for real."""

import pytest
import torch

from robocache_ros.alignments import NAMES, alignment
from robocache_ros.ops.cuda.kernels import packer
from robocache_ros.ops.resample.cuda import BlendArguments, blend_defines
from robocache_ros.ops.resample.resample import blend


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
