"""Gradients of several processes, averaged while the backward pass and the optimizer go on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed

GROUP_BYTES = 128 << 20
ALIGNED = 64  # elements: the vectorised kernels of the optimizer want each gradient at such a place


class GradientExchange:
    """Replaces each gradient by its mean over the processes of torch.distributed.

    Parameters are exchanged in groups, the last ones first, as the backward pass completes them. All processes exchange
    the groups in one order. Unlike with DistributedDataParallel, the update of a group waits for that group alone. A
    compiled policy gives all gradients at the end of its backward pass, where only the optimizer is left to hide it.

    Args:
        parameters: of this process; they are set to those of the first process.
        buffers: of this process, likewise.
        group_bytes: of the gradients of a group.

    Attributes:
        groups: the parameters of each group, in the order of the exchange.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        buffers: Sequence[Tensor] = (),
        *,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        for each in (*parameters, *buffers):
            distributed.broadcast(each.data, 0)
        self.groups = _grouped([each for each in parameters if each.requires_grad], group_bytes)
        self._flat = [_Flat(group) for group in self.groups]
        self._works: list[Any] = []
        self._mean = distributed.ReduceOp.AVG if distributed.get_backend() == "nccl" else distributed.ReduceOp.SUM
        self._armed = False
        self._missing: list[int] = []
        for number, group in enumerate(self.groups):
            for each in group:
                hook = partial(self._completed, number)
                each.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def arm(self) -> None:
        """Exchange the gradients of the next backward pass, those that are there already included."""
        self._works, self._armed = [], True
        self._missing = [len(group) for group in self.groups]

    def finish(self) -> None:
        """Start what the backward pass has not started: the groups of parameters that the loss does not depend on."""
        self._armed = False
        while len(self._works) < len(self.groups):
            self._start()

    def wait(self, number: int) -> None:
        """Let the current stream wait for a group, whose gradients are then the means; the second time does nothing."""
        work, self._works[number] = self._works[number], None
        if work is None:
            return
        work.wait()
        if self._mean is distributed.ReduceOp.SUM:
            self._flat[number].memory.div_(distributed.get_world_size())

    def _completed(self, number: int, _: Tensor) -> None:
        if not self._armed:
            return
        self._missing[number] -= 1
        while len(self._works) < len(self.groups) and self._missing[len(self._works)] == 0:
            self._start()

    def _start(self) -> None:
        """Exchange the next group."""
        flat = self._flat[len(self._works)]
        flat.fill()
        self._works.append(distributed.all_reduce(flat.memory, self._mean, async_op=True))


class _Flat:
    """The gradients of a group in one block of memory."""

    def __init__(self, group: Sequence[Tensor]) -> None:
        places, end = [], 0
        for each in group:
            places.append(end)
            end += -(-each.numel() // ALIGNED) * ALIGNED
        self._group = group
        self.memory = torch.zeros(end, dtype=torch.float32, device=group[0].device)
        self._views = [
            self.memory[at : at + each.numel()].view(each.shape) for at, each in zip(places, group, strict=True)
        ]

    def fill(self) -> None:
        """Copy the gradients into the block, and let the parameters have them there."""
        found = [
            (view, each.grad) for view, each in zip(self._views, self._group, strict=True) if each.grad is not None
        ]
        if len(found) < len(self._group):
            self.memory.zero_()
        if found:
            torch._foreach_copy_([view for view, _ in found], [gradient for _, gradient in found])
        for view, each in zip(self._views, self._group, strict=True):
            each.grad = view


def _grouped(parameters: Sequence[Tensor], group_bytes: int) -> list[list[Tensor]]:
    """The parameters in groups of about so many bytes, from the last one on, whose gradients come first."""
    groups: list[list[Tensor]] = []
    room = 0
    for each in reversed(parameters):
        size = each.numel() * 4
        if size > room or not groups:
            groups.append([])
            room = group_bytes
        groups[-1].append(each)
        room -= size
    return groups
