"""A training step as a CUDA graph: one launch from Python instead of hundreds."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError

StepBatches = Sequence[Mapping[str, Tensor]]
WARM_UP = 3  # steps before the capture: libraries allocate their workspaces, the optimizer its state


class GraphedStep:
    """Runs a step on batches of one shape: the first few as they are, the following ones as replays of a graph.

    The capture itself computes nothing, so that steps are counted as without a graph and have the same results.

    Args:
        step: the whole step, from its batches to the changed weights; returns the loss. It never reads a tensor's value
            on the host, and sets the gradients to None before it computes them.
    """

    def __init__(self, step: Callable[[StepBatches], Tensor]) -> None:
        self._step = step
        self._batches: list[dict[str, Tensor]] = []  # what the graph reads
        self._loss: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._calls = 0
        _STEPS.add(self)

    def __call__(self, batches: StepBatches) -> Tensor:
        """Run a step and return its loss."""
        self._calls += 1
        if self._calls <= WARM_UP:
            side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss = self._step(batches)
            torch.cuda.current_stream().wait_stream(side)
            return loss
        if self._graph is None:
            self._batches = [{key: value.clone() for key, value in batch.items()} for batch in batches]
            self._graph = torch.cuda.CUDAGraph()
            # Threads of a loader, which pin memory, go on meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._loss = self._step(self._batches)
        for own, batch in zip(self._batches, batches, strict=True):
            fill(own, batch)
        self._graph.replay()
        assert self._loss is not None
        return self._loss.clone()

    def release(self) -> None:
        """Free the graph; the next step captures another one."""
        if self._graph is not None:
            self._graph.reset()
        self._graph, self._loss, self._batches = None, None, []


_STEPS: weakref.WeakSet[GraphedStep] = weakref.WeakSet()


def release_graphs() -> None:
    """Free the graphs of all steps of this process. A process group that they use can be destroyed only then."""
    for step in list(_STEPS):
        step.release()


def fill(own: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> None:
    """Copy a batch into the tensors that a graph reads.

    Errors:
        RoboCacheError: the batch has another shape.
    """
    for key, value in own.items():
        if value.shape != batch[key].shape:
            raise RoboCacheError(
                f"cuda_graph: {key} is {tuple(batch[key].shape)}, not {tuple(value.shape)}; use batches of one size"
            )
        value.copy_(batch[key])
