import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import fuse, fuse_multimodal_alignment, resample_trajectories
from robocache_ros.ops.resample.inputs import Fused, Stream

TARGETS = torch.arange(0, 400, 20)


def random_stream(samples, width, method="linear", dtype=torch.float32, **more):
    random = torch.Generator().manual_seed(samples)
    data = torch.randn(2, samples, width, generator=random).to(dtype)
    return Stream(data, torch.randint(1, 40, (2, samples), generator=random).cumsum(1), method, **more)


def test_each_stream_fills_its_columns_as_if_resampled_separately():
    streams = [random_stream(10, 5), random_stream(20, 4, "slerp"), random_stream(30, 3, "hold", max_age=9)]
    values, valid, age = fuse([tuple(stream) for stream in streams], TARGETS)
    assert values.shape == (2, 20, 12)
    column = 0
    for index, (data, times, method, _, _, max_age) in enumerate(streams):
        options = {"method": method, "max_age": max_age, "return_valid": True}
        separate, alone_valid = resample_trajectories(data, times, TARGETS, **options)
        assert torch.equal(values[:, :, column : column + data.shape[2]], separate)
        assert torch.equal(valid[:, :, index], alone_valid)
        column += data.shape[2]
    assert age.dtype == torch.int64


def test_one_dtype_is_kept_and_several_become_float32():
    halves = [random_stream(10, 1, dtype=torch.float16)] * 2
    assert fuse(halves, TARGETS).values.dtype == torch.float16
    assert fuse([*halves, random_stream(10, 1, dtype=torch.bfloat16)], TARGETS).values.dtype == torch.float32


def test_bytes_are_counted_as_numbers_next_to_floats():
    image = Stream(torch.tensor([[[7, 255]]], dtype=torch.uint8), torch.tensor([0]), "hold")
    fused = fuse([image, random_stream(10, 1)._replace(data=torch.ones(1, 10, 1), times=torch.arange(10))], TARGETS[:1])
    assert fused.values.tolist() == [[[7.0, 255.0, 1.0]]]


def test_the_output_is_rounded_once_to_the_requested_dtype():
    stream = Stream(torch.tensor([[[1.0], [1.0078125]]]), torch.tensor([0, 4]))
    got = fuse([stream], torch.tensor([1, 2, 3]), dtype=torch.bfloat16).values
    assert got.flatten().tolist() == [1.0, 1.0, 1.0078125]  # the half-way one to the even neighbour


def test_multimodal_alignment_takes_streams_in_turn():
    a, b = random_stream(10, 5), random_stream(20, 4)
    expected = fuse([a, b], TARGETS)
    assert torch.equal(fuse_multimodal_alignment(*a[:2], *b[:2], TARGETS), expected.values)
    assert torch.equal(fuse_multimodal_alignment(*a[:2], *b[:2], target_times=TARGETS), expected.values)
    got = fuse_multimodal_alignment(*a[:2], *b[:2], TARGETS, method=["linear", "hold"], return_valid=True)
    assert torch.equal(got.values, fuse([a, b._replace(method="hold")], TARGETS).values)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, b: fuse([], TARGETS), "streams: expected at least one"),
        (lambda a, b: fuse([a, b._replace(data=b.data[:1])], TARGETS), r"streams\[1\].data: expected"),
        (lambda a, b: fuse([a, b._replace(times=b.times.double())], TARGETS), r"streams\[1\].times: expected"),
        (lambda a, b: fuse([a, b._replace(max_gap=-2)], TARGETS), r"streams\[1\].max_gap: expected an integer number"),
        (lambda a, b: fuse([a, b], TARGETS, dtype=torch.int32), "dtype: torch.int32 is not float32"),
        (lambda a, b: fuse([a, b], TARGETS, dtype=torch.uint8), "dtype: torch.uint8 is not float32"),
        (lambda a, b: fuse([a._replace(data=a.data.requires_grad_())], TARGETS), "fuse has no gradient"),
        (lambda a, b: fuse_multimodal_alignment(*a[:2], *b[:2]), "expected data1, times1"),
        (lambda a, b: fuse_multimodal_alignment(*a[:2], TARGETS, method=["hold"] * 2), "method: expected one"),
    ],
)
def test_a_wrong_input_is_named(call, message):
    with pytest.raises(RoboCacheError, match=message):
        call(random_stream(10, 5), random_stream(20, 4))


def test_a_result_can_be_filled_again():
    streams = [Stream(torch.randn(2, 5, 3), torch.arange(5)), Stream(torch.randn(2, 4, 1), torch.arange(4), "hold")]
    expected = fuse(streams, torch.arange(6))
    given = Fused(*(torch.full_like(tensor, 9) for tensor in expected))
    filled = fuse(streams, torch.arange(6), out=given)
    assert all(a is b for a, b in zip(filled, given, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(filled, expected, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: out._replace(age=out.age.int()), r"out.age: expected .*int64.*got .*int32"),
        (lambda out: out._replace(valid=out.valid[:, :5]), r"out.valid: expected contiguous \(2, 6, 1\)"),
        (lambda out: out._replace(valid=None), r"out.valid: expected a tensor, got NoneType"),
        (lambda out: out.values.numpy(), r"out: expected a tensor, got ndarray"),
    ],
)
def test_a_result_that_does_not_fit_is_refused(change, message):
    streams = [Stream(torch.randn(2, 5, 3), torch.arange(5))]
    with pytest.raises(RoboCacheError, match=message):
        fuse(streams, torch.arange(6), out=change(fuse(streams, torch.arange(6))))
