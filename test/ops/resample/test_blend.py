"""Blends of chosen rows: the CPU backend by hand, and blend.cu and the row of a tick with its bits."""

import numpy as np
import pytest
import torch

from robocache_ros.alignments import NAMES, alignment
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda.kernels import packer
from robocache_ros.ops.resample.cuda import BlendArguments, blend_defines
from robocache_ros.ops.resample.resample import blend
from robocache_ros.ops.tick import RowTask
from test.ops.conftest import same_bits
from test.ops.resample.conftest import HOST_TEXT, values


def rows(lower, upper, weight):
    return torch.tensor(lower), torch.tensor(upper), torch.tensor(weight, dtype=torch.float32)


NAN = float("nan")


@pytest.mark.parametrize(
    ("source", "selected", "method", "expected"),
    [
        ([[0.0, 10.0], [4.0, 20.0]], ([0], [1], [0.25]), "linear", [[1.0, 12.5]]),
        ([[1.5], [NAN]], ([0, 0], [1, 0], [0.0, 0.7]), "linear", [[1.5], [1.5]]),  # a weight of 0: copied
        ([[NAN] * 3] * 2, ([-1], [-1], [0.0]), "hold", [[0.0, 0.0, 0.0]]),  # no row
        (torch.empty(0, 2), ([-1], [-1], [0.0]), "linear", [[0, 0]]),
        *(
            (torch.arange(12.0).view(3, 4), ([0, 1], [-1, -1], [0.5, 1.0]), method, [[0, 1, 2, 3], [4, 5, 6, 7]])
            for method in ("linear", "slerp", "angle")  # no upper row: copied, whatever the weight
        ),
        # Halfway between two bfloat16: rounded once at the end, to the even one.
        (torch.tensor([[1.0], [1.0078125]], dtype=torch.bfloat16), ([0], [1], [0.5]), "linear", [[1.0]]),
    ],
    ids=range(8),
)
def test_a_blend_of_rows_is_that_worked_out_by_hand(source, selected, method, expected):
    source = torch.as_tensor(source)
    out = torch.empty(len(expected), source.shape[1], dtype=source.dtype)
    arrays = [tensor.numpy() for tensor in rows(*selected)]
    assert blend(source, *rows(*selected), method=method).tolist() == expected
    assert blend(source, *arrays, method=method, out=out) is out
    assert out.tolist() == expected


def test_nan_from_arithmetic_has_one_pattern_of_bits():
    source = torch.tensor([[float("inf")], [float("inf")], [-float("nan")]])
    got = blend(source, *rows([0, 0], [1, 2], [0.5, 0.5]), method="linear")
    assert got.view(torch.int32).tolist() == [[0x7FC00000], [0x7FC00000]]


@pytest.mark.parametrize(
    ("source", "method", "upper", "message"),
    [
        (torch.ones(2, 3), "slerp", 1, "quaternions of 4 columns"),
        (torch.ones(2, 3, dtype=torch.uint8), "linear", 1, "cannot be aligned by linear"),
        (torch.ones(2, 3), "cubic", 1, "'cubic' is not one of"),
        (torch.ones(2), "linear", 1, "expected 2 dimensions"),
        (torch.ones(2, 1), "linear", 2, "below 2"),
    ],
)
def test_a_wrong_source_and_a_row_past_the_end_are_refused(source, method, upper, message):
    with pytest.raises(RoboCacheError, match=message):
        blend(source, *rows([0], [upper], [0.5]), method=method)


def emulated_blend(host_library, source, lower, upper, weight, method):
    count, width, rows = len(lower), source.shape[1], 16
    out = torch.empty(count, width, dtype=source.dtype)
    skews = (source.data_ptr() & 15, out.data_ptr() & 15)
    library = host_library(HOST_TEXT, blend_defines(method, source.dtype, width, skews, rows))
    pointers = [tensor.data_ptr() for tensor in (source, out, lower, upper, weight)]
    fields = (*pointers, count, len(source), width, rows)
    library.run_blend(packer(BlendArguments).pack(*fields), -(-count // rows))
    return out


@pytest.mark.parametrize("where", ["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("method", "width"), [*((name, 7) for name in NAMES), ("linear", 4), ("slerp", 4), ("hold", 4)]
)
def test_blend_of_chosen_rows(host_library, method, width, where):
    source = values(torch.bfloat16, 11, width * alignment(method).group)
    random = torch.Generator().manual_seed(5)
    lower, upper = (torch.randint(-1, 11, (70,), generator=random) for _ in range(2))
    weight = torch.rand(70, generator=random)
    weight[::7] = 0
    if where == "cuda":
        got = blend(*(tensor.cuda() for tensor in (source, lower, upper, weight)), method=method).cpu()
    else:
        got = emulated_blend(host_library, source, lower, upper, weight, method)
    same_bits(got, blend(source, lower, upper, weight, method=method))


def test_a_row_of_a_tick_has_the_bits_of_blend(tick_row):
    rng = np.random.default_rng(5)
    widths = {name: alignment(name).group * (2 + number) for number, name in enumerate(NAMES)}
    sources = {m: torch.from_numpy(rng.normal(size=(9, w)).astype(np.float32)) for m, w in widths.items()}
    for source in sources.values():
        source[4] = torch.tensor(NAN)
        source[5, 0] = float("inf")
    out, starts = np.empty(sum(widths.values()), np.float32), np.cumsum([0, *widths.values()])
    for _ in range(200):
        lower, upper = rng.integers(-1, 9, 2)
        weight = np.float32(rng.choice([0, rng.random()]))
        tasks = b"".join(
            packer(RowTask).pack(source.data_ptr(), lower, max(upper, 0), weight, widths[m], start, NAMES.index(m))
            for (m, source), start in zip(sources.items(), starts, strict=False)
        )
        tick_row.fuse(tasks, len(sources), out.ctypes.data)
        selection = rows([lower], [max(upper, 0)], [weight])
        expected = torch.cat([blend(source, *selection, method=m)[0] for m, source in sources.items()])
        assert out.tobytes() == expected.numpy().tobytes()
