"""Launches of kernels/resample/resample.cu."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda.dependent_launch import launch_captured_dependent
from robocache_ros.ops.cuda.loader import Kernel, kernel
from robocache_ros.ops.cuda.tensor_guards import like
from robocache_ros.ops.resample.cuda.launch_plan import MOST_STREAMS, LaunchPlan, make_plan
from robocache_ros.ops.resample.cuda.tiles import ALL, Key, Part, StreamKey
from robocache_ros.ops.resample.inputs import NO_GRADIENT, Label, Shape, Stream, check_marks, check_streams
from robocache_ros.ops.resample.times import FOREVER, limit_ns

Address = tuple[int, int, int, int, int]  # data, times, lengths, max_gap and max_age of StreamArguments


class _Launch(NamedTuple):
    plan: LaunchPlan
    kernel: Kernel
    streams: slice  # that it computes


class _Ready(NamedTuple):
    shape: Shape
    launches: tuple[_Launch, ...]  # none where there is nothing to compute
    # One element each, expanded to the shape of valid and age: `empty_like` is the fastest allocation.
    marks: tuple[Tensor, Tensor]
    gradient: bool  # an input requires one


# A call like an earlier one needs neither checks nor a plan. For each set of options: guards on the tensors of earlier
# calls, and what was prepared for them, the latest first.
_ready: dict[tuple[Any, ...], tuple[tuple[Callable[..., bool], _Ready], ...]] = {}
_MOST_READY, _MOST_ALIKE = 4096, 64


# More than 50 lines because a function call for each stream would double the time of the loop.
def run_streams_cuda(
    streams: Sequence[Stream],
    targets: Tensor,
    dtype: torch.dtype | None,
    out: Tensor | None,
    label: Label,
    valid: Tensor | bool,
    age: Tensor | bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """`run_streams` on the GPU: one launch on torch's current stream, or one for each `MOST_STREAMS`."""
    try:
        # Inlined, because it is most of the cost of a call.
        form: list[Any] = [dtype, targets.shape]
        tensors: list[Any] = []
        addresses: list[Address] = []
        before = targets
        for index, (data, times, method, lengths, max_gap, max_age) in enumerate(streams):
            address = data.data_ptr()
            form += (method, address & 15, lengths is None, times is before)
            tensors.append(data)
            if times is not before:  # guards refuse a tensor that is given twice, and streams often share times
                tensors.append(times)
                before = times
            if lengths is not None:
                tensors.append(lengths)
            addresses.append(
                (
                    address,
                    times.data_ptr(),
                    0 if lengths is None else lengths.data_ptr(),
                    FOREVER if max_gap is None else limit_ns(label(index, "max_gap"), max_gap, times.dtype),
                    FOREVER if max_age is None else limit_ns(label(index, "max_age"), max_age, times.dtype),
                )
            )
        tensors.append(targets)
        if out is None:
            form.append(None)
        else:
            form.append(out.data_ptr() & 15)
            tensors.append(out)
        for mark in (valid, age):
            if isinstance(mark, bool):
                form.append(mark)
            else:
                form.append(None)
                tensors.append(mark)
        key = tuple(form)
        earlier = _ready.get(key, ())
    except (AttributeError, TypeError):  # not a tensor: the checks raise an error with its name
        check_marks(check_streams(streams, targets, dtype, out, label), len(streams), valid, age)
        raise
    for number, (is_like, found) in enumerate(earlier):
        if is_like(*tensors):
            ready = found
            if number:
                _ready[key] = (earlier[number], *earlier[:number], *earlier[number + 1 :])
            break
    else:
        ready = _prepare(streams, targets, dtype, out, label, valid, age)
        if len(_ready) >= _MOST_READY:
            _ready.clear()
        _ready[key] = ((like(tensors), ready), *earlier[: _MOST_ALIKE - 1])
    shape, launches, (like_valid, like_age), gradient = ready
    if gradient and torch.is_grad_enabled():
        raise RoboCacheError(NO_GRADIENT)
    if out is None:
        out = streams[0].data.new_empty((shape.batches, shape.targets, shape.width), dtype=shape.dtype)
    valids = torch.empty_like(like_valid) if valid is True else None if valid is False else valid
    ages = torch.empty_like(like_age) if age is True else None if age is False else age
    for plan, launchable, part in launches:
        arguments = launch_arguments(plan, addresses[part], targets, out, valids, ages)
        launch_captured_dependent(launchable, (plan.grid, 1, 1), plan.block, plan.shared, *arguments)
    return out, valids, ages


def launch_arguments(
    plan: LaunchPlan,
    addresses: Sequence[Address],
    targets: Tensor,
    out: Tensor,
    valid: Tensor | None,
    age: Tensor | None,
) -> list[int | bytes]:
    """The values for `plan.layout`: this call's for the job and for each stream, each followed by planned bytes."""
    job, *streams = plan.planned
    arguments: list[int | bytes] = [
        out.data_ptr(),
        targets.data_ptr(),
        0 if valid is None else valid.data_ptr(),
        0 if age is None else age.data_ptr(),
        job,
    ]
    for address, planned in zip(addresses, streams, strict=True):
        arguments += address
        arguments.append(planned)
    return arguments


def plan_keys(
    streams: Sequence[Stream], targets: Tensor, shape: Shape, skew: int, processors: int, marked: bool = True
) -> Iterator[tuple[slice, Key]]:
    """The keys of the plans for checked streams: of one launch, or of one for each `MOST_STREAMS`."""
    keys = tuple(
        StreamKey(
            data.shape[1],
            data.shape[2],
            data.dtype,
            method,
            times.dim() == 2,
            lengths is not None,
            data.data_ptr() & 15,
        )
        for data, times, method, lengths, *_ in streams
    )
    column = 0
    for first in range(0, len(keys), MOST_STREAMS):
        some = slice(first, first + MOST_STREAMS)
        part = ALL if len(keys) <= MOST_STREAMS else Part(column, shape.width, first, len(keys))
        column += sum(key.width for key in keys[some])
        times, both = targets.dtype, targets.dim() == 2
        sizes = (shape.batches, shape.targets)
        yield some, Key(keys[some], *sizes, times, both, shape.dtype, skew, processors, marked, part)


def _prepare(
    streams: Sequence[Stream],
    targets: Tensor,
    dtype: torch.dtype | None,
    out: Tensor | None,
    label: Label,
    valid: Tensor | bool,
    age: Tensor | bool,
) -> _Ready:
    shape = check_streams(streams, targets, dtype, out, label)
    check_marks(shape, len(streams), valid, age)
    gradient = any(stream.data.requires_grad for stream in streams)
    sizes = (shape.batches, shape.targets, len(streams))
    one_valid, one_age = (torch.empty(1, dtype=t, device=shape.device) for t in (torch.uint8, torch.int64))
    marks = (one_valid.expand(sizes), one_age.expand(sizes))
    if not shape.batches or not shape.targets:
        return _Ready(shape, (), marks, gradient)
    device = shape.device.index
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    launches = []
    skew = 0 if out is None else out.data_ptr() & 15
    marked = valid is not False or age is not False
    for part, key in plan_keys(streams, targets, shape, skew, processors, marked):
        plan = make_plan(key)
        made = kernel("resample/resample.cu", "resample_streams", plan.layout, device, plan.defines)
        launches.append(_Launch(plan, made, part))
    return _Ready(shape, tuple(launches), marks, gradient)
