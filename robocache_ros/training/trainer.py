"""The training loop: batches of a loader to steps of an optimizer, resumed where it stopped."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import get_ema_multi_avg_fn

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.monitoring import DataWaitMeter
from robocache_ros.training.policies.make_policy import Policy
from robocache_ros.training.training_options import TrainingOptions

_LOG = logging.getLogger("robocache_ros.training")
StepBatches = Sequence[Mapping[str, Tensor]]
WARM_UP = 3  # steps before the capture: libraries allocate their workspaces, the optimizer its state
PARALLEL_WARM_UP = 11  # with DistributedDataParallel, as its documentation demands


class GraphedStep:
    """Runs a step on batches of one shape: the first few as they are, the following ones as replays of a graph.

    The capture itself computes nothing, so that steps are counted as without a graph and have the same results.

    Args:
        step: the whole step, from its batches to the changed weights; returns the loss. It never reads a tensor's value
            on the host, and sets the gradients to None before it computes them.
        warm_up: calls that run the step as it is.
        stream: of these calls and of the capture; None: one of its own.
        required: raise what prevents a capture; else log it, and go on without a graph.
    """

    def __init__(
        self,
        step: Callable[[StepBatches], Tensor],
        warm_up: int = WARM_UP,
        stream: torch.cuda.Stream | None = None,
        *,
        required: bool = True,
    ) -> None:
        self._step, self._warm_up, self._required = step, warm_up, required
        self._stream: torch.cuda.Stream = stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._batches: list[dict[str, Tensor]] = []  # what the graph reads
        self._loss: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._calls = 0
        self._refused = False
        _STEPS.add(self)

    def __call__(self, batches: StepBatches) -> Tensor:
        """Run a step and return its loss."""
        self._calls += 1
        if self._calls <= self._warm_up or (self._graph is None and not self._captured(batches)):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                loss = self._step(batches)
            torch.cuda.current_stream().wait_stream(self._stream)
            return loss
        assert self._graph is not None
        for own, batch in zip(self._batches, batches, strict=True):
            fill(own, batch)
        self._graph.replay()
        assert self._loss is not None
        return self._loss.clone()

    def _captured(self, batches: StepBatches) -> bool:
        """Capture the step. Return whether it could be; if not, all further steps run as they are."""
        if self._refused:
            return False
        self._batches = [{key: value.clone() for key, value in batch.items()} for batch in batches]
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[self._stream.device.index]
        before = generator.clone_state()  # a capture that fails leaves the other one of no use
        try:
            # Threads of a loader, which pin memory, go on meanwhile.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._loss = self._step(self._batches)
        except RuntimeError as error:
            generator.graphsafe_set_state(before)
            if self._required:
                raise
            self._refused, self._loss, self._batches = True, None, []
            _LOG.info("CUDA graph: not used, the step cannot be captured: %s", printable(error, 120))
            return False
        self._graph = graph
        _LOG.info("CUDA graph: captured, further steps are replays of it")
        return True

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


VERSION = 4
STATE = {"version", "step", "policy", "average", "average_share", "optimizer", "ranks"}  # the keys of a state
MAX_STEPS = 2**53


class Batches(Protocol):
    """What a trainer needs of a loader; `TimelineLoader` has it."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Return the batches of the next epoch, or the rest of the one that was resumed."""

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the next batch."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a place."""


class Trainer:
    """Trains a policy on the batches of a loader, in one process or in each of several.

    A run that is resumed from `state_dict` has, on the same machine and with the same arguments, exactly the losses of
    one that was not interrupted (on a GPU with `deterministic`): the state has the weights, the optimizer, the average,
    the random numbers of all processes, and the place in the loader's order.

    Args:
        policy: on any device; it is moved.
        loader: gives batches of one size (`drop_last=True`), with at least the keys `policy.config.keys`.
        options: see `TrainingOptions`.
        device: of this process.

    Attributes:
        step: steps so far.
        policy: with the newest weights.
        data_wait: the time for which the device waited for data.
    """

    def __init__(
        self, policy: Policy, loader: Batches, options: TrainingOptions, device: torch.device | str = "cpu"
    ) -> None:
        self.policy, self.loader, self.options = policy.to(device), loader, options
        self.device = torch.device(device)
        if options.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
            torch.use_deterministic_algorithms(True)
        self.step = 0
        self.data_wait = DataWaitMeter(self.device)
        self._parameters = list(policy.parameters())
        self._parallel = distributed.is_available() and distributed.is_initialized()
        self._graph = self.device.type == "cuda" and not self._parallel
        if options.cuda_graph is not None:
            self._graph = options.cuda_graph
        elif self._parallel and self.device.type == "cuda":
            _LOG.info("CUDA graph: not used, because several processes train; cuda_graph=True tries it")
        if self._graph and self.device.type != "cuda":
            raise RoboCacheError("cuda_graph: needs a GPU; leave it out")
        self._stream: Any = torch.cuda.Stream(self.device) if self._graph else None  # type: ignore[no-untyped-call]
        self._model = self._make_model()
        self._primed = not self._parallel
        self._averaged = [torch.zeros_like(p) for p in self._parameters] if options.average else None
        self._averaged_share = 0.0  # of all weights so far; the rest are the zeros of the start
        self._update_average = get_ema_multi_avg_fn(options.average)  # type: ignore[no-untyped-call]
        self._optimizer = self._make_optimizer()
        self._step_on: Any = self._make_step()
        self._batches: Iterator[Mapping[str, Any]] | None = None
        torch.manual_seed(options.seed + (distributed.get_rank() if self._parallel else 0))

    def train_step(self) -> Tensor:
        """Run a step and return its loss, a scalar on the device: reading it waits for the device."""
        rate = self.options.rate_at(self.step)
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        # A graph reads all batches of its step; without one, a step takes them one by one.
        batches: Any = (self._next() for _ in range(self.options.accumulate))
        loss: Tensor = self._step_on(list(batches) if self._graph else batches)
        self.step += 1
        if self._averaged is not None:
            self._averaged_share += (1 - self._averaged_share) * (1 - self.options.average)
        return loss

    @property
    def average(self) -> list[Tensor] | None:
        """The average of the weights after each step, in the order of `policy.parameters()`; None if there is none.

        The random weights before the first step have no part in it, whose share would be 0.999^steps otherwise.
        """
        if self._averaged is None or not self._averaged_share:
            return None
        return [each / self._averaged_share for each in self._averaged]

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run depends on. With several processes all of them call it."""
        mine = {"loader": self.loader.state_dict(), "random": torch.get_rng_state()}
        if self.device.type == "cuda":
            mine["random_cuda"] = torch.cuda.get_rng_state(self.device)
        ranks: list[Any] = [mine]
        if self._parallel:
            ranks = [None] * distributed.get_world_size()
            distributed.all_gather_object(ranks, mine)
        return {
            "version": VERSION,
            "step": self.step,
            "policy": self.policy.state_dict(),
            "average": self._averaged,
            "average_share": self._averaged_share,
            "optimizer": self._optimizer.state_dict(),
            "ranks": ranks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called, with the options of this trainer.

        Errors:
            RoboCacheError: the state is of another version, policy, number of processes or loader, or is not a state.
                Nothing is changed then, except for the random numbers.
        """
        state = check_state(state, self.policy)
        ranks = state["ranks"]
        rank, size = (distributed.get_rank(), distributed.get_world_size()) if self._parallel else (0, 1)
        if not isinstance(ranks, list) or len(ranks) != size:
            count = len(ranks) if isinstance(ranks, list) else "no"
            raise RoboCacheError(f"checkpoint: of {count} processes, here {size}; start as many")
        mine = ranks[rank]
        if not isinstance(mine, dict) or not {"loader", "random"} <= set(mine) <= {"loader", "random", "random_cuda"}:
            raise RoboCacheError(f"checkpoint: not the state of process {rank}; train again")
        self._check_optimizer(state["optimizer"])
        self._restore_random(mine)
        self.loader.load_state_dict(mine["loader"])
        self.policy.load_state_dict(state["policy"])
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state["optimizer"]["state"]})
        self._step_on = self._make_step()  # an old graph has the old state of the optimizer
        if self._averaged is not None:
            kept = state["average"] is not None
            self._averaged_share = state["average_share"] if kept else 0.0
            for value, saved in zip(self._averaged, state["average"] if kept else self._averaged, strict=True):
                value.copy_(saved)
        self.step = state["step"]
        self._batches = None

    def _check_optimizer(self, found: object) -> None:
        """Refuse what is not the state of AdamW for the parameters."""
        moments = found.get("state") if isinstance(found, dict) else None
        # Empty before the first step, and without parameters that the loss does not depend on.
        if not isinstance(moments, dict) or not set(moments) <= set(range(len(self._parameters))):
            raise RoboCacheError("checkpoint: optimizer: not the state of its parameters; train again")
        for number, parameter in enumerate(self._parameters):
            if number in moments:
                expected = {"step": torch.zeros(()), "exp_avg": parameter, "exp_avg_sq": parameter}
                _check_tensors(f"optimizer {number}", moments[number], expected)
                _check_finite(f"optimizer {number}", moments[number])

    def _restore_random(self, mine: Mapping[str, Any]) -> None:
        states = {"random": torch.get_rng_state()}
        if "random_cuda" in mine and self.device.type == "cuda":
            states["random_cuda"] = torch.cuda.get_rng_state(self.device)
        _check_tensors("random numbers", {name: mine[name] for name in states}, states)
        try:
            torch.set_rng_state(mine["random"].cpu())
            if "random_cuda" in states:
                torch.cuda.set_rng_state(mine["random_cuda"].cpu(), self.device)
        except RuntimeError as error:
            raise RoboCacheError(f"checkpoint: random numbers: {printable(error, 60)}; train again") from None

    def _make_model(self) -> Any:
        """The policy as it is called: compiled, and with gradients that are the means over all processes."""
        model: Any = torch.compile(self.policy, dynamic=False) if self.options.compile else self.policy
        if not self._parallel:
            return model
        if not self._graph:
            return DistributedDataParallel(model, gradient_as_bucket_view=True)
        # A capture demands that it is made on the stream of the capture, and that it measures no times meanwhile.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        torch.cuda.current_stream().wait_stream(self._stream)
        model._set_ddp_runtime_logging_sample_rate(2**31 - 1)
        return model

    def _make_step(self) -> Any:
        if not self._graph:
            return self._plain_step
        warm_up, required = PARALLEL_WARM_UP if self._parallel else WARM_UP, bool(self.options.cuda_graph)
        return GraphedStep(self._plain_step, warm_up, self._stream, required=required)

    def _make_optimizer(self) -> torch.optim.AdamW:
        # A graph reads the learning rate from memory, so that it can change, and corrects the bias on the device. Steps
        # without a graph do the same, for the same bits.
        cuda = self.device.type == "cuda"
        rate: Any = torch.tensor(self.options.learning_rate, device=self.device) if cuda else 0.0
        decay = self.options.weight_decay
        return torch.optim.AdamW(self._parameters, rate, weight_decay=decay, fused=cuda, capturable=cuda)

    def _plain_step(self, batches: Iterable[Mapping[str, Tensor]]) -> Tensor:
        """A step on `accumulate` batches, which a CUDA graph can capture."""
        count = self.options.accumulate
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches, start=1):
            if number == 1:
                self._prime(batch)
                for each in self._parameters:
                    each.grad = None
            # Gradients are exchanged once per step.
            with self._model.no_sync() if self._parallel and number < count else nullcontext():
                total += self._backward(batch)
        if self.options.clip_norm:
            torch.nn.utils.clip_grad_norm_(self._parameters, self.options.clip_norm)
        self._optimizer.step()
        if self._averaged is not None:
            self._update_average(self._averaged, self._parameters, 0)
        return total

    def _prime(self, batch: Mapping[str, Tensor]) -> None:
        """Let DistributedDataParallel see one backward pass before the first step, which changes nothing else.

        It orders its buckets by the first pass, and adds in another order from the second pass on. With more than two
        processes a run that is resumed would otherwise differ from one that was not interrupted.
        """
        if self._primed:
            return
        buffers = [(each, each.clone()) for each in self.policy.buffers()]
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            self._backward(batch)
        for each, before in buffers:
            each.copy_(before)
        self._primed = True

    def _backward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Add the gradients of a batch, and return its share of the loss of the step."""
        loss = self._loss(batch) / self.options.accumulate
        # Not in a thread of its own, which a small step would spend more time on than on its operations.
        with torch.autograd.set_multithreading_enabled(False):
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        cached = self.device.type != "cuda"  # a cache of converted weights would be part of a graph
        with torch.autocast(self.device.type, torch.bfloat16, self.options.bf16, cached):
            loss: Tensor = self._model(batch)
        return loss

    def _next(self) -> dict[str, Tensor]:
        """The next batch, of the next epoch if one is over."""
        with self.data_wait.waiting():
            if self._batches is None:
                self._batches = iter(self.loader)
            batch = next(self._batches, None)
            if batch is None:
                self._batches = iter(self.loader)
                batch = next(self._batches, None)
            if batch is None:
                raise RoboCacheError("loader: the dataset has fewer samples than a batch; use a smaller batch size")
        return {key: batch[key] for key in self.policy.config.keys}


def check_state(state: object, policy: Policy, nbytes: int | None = None) -> dict[str, Any]:
    """Return a state, converted to this version, whose weights and average are those of a policy.

    The state of the optimizer is not verified.

    Args:
        state: what `Trainer.state_dict` returned.
        policy: on any device, `meta` included.
        nbytes: limit of the weights and of the average; None: none.

    Errors:
        RoboCacheError: it is of another version, or a value is missing, unknown, not finite, or of another type or
            shape.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise RoboCacheError("checkpoint: not the state of a training; train again")
    state = _converted(state)
    if type(state["version"]) is not int or state["version"] != VERSION:
        raise RoboCacheError(f"checkpoint: of version {printable(state['version'], 20)}, here {VERSION}; train again")
    if set(state) != STATE:
        wrong = min(map(str, STATE ^ set(state)))
        raise RoboCacheError(f"checkpoint: {printable(wrong, 30)} is missing or unknown; train again")
    if type(state["step"]) is not int or not 0 <= state["step"] < MAX_STEPS:
        raise RoboCacheError(f"checkpoint: step is {printable(state['step'], 30)}; train again")
    share, average = state["average_share"], state["average"]
    if type(share) is not float or not 0 <= share <= 1 or (share and average is None):
        raise RoboCacheError(f"checkpoint: average_share is {printable(share, 30)}; train again")
    parameters = dict(policy.named_parameters())
    parts = [("weights", state["policy"], policy.state_dict())]
    if average is not None:
        if not isinstance(average, list) or len(average) != len(parameters):
            raise RoboCacheError(f"checkpoint: average: not of {len(parameters)} weights; train again")
        parts.append(("average", dict(zip(parameters, average, strict=True)), parameters))
    for where, found, expected in parts:
        _check_tensors(where, found, expected)
        size = sum(each.numel() * each.element_size() for each in expected.values())
        if nbytes is not None and size > nbytes:
            raise RoboCacheError(f"checkpoint: {where} of {size:,} bytes in a file of {nbytes:,}; train again")
        _check_finite(where, found)
    if share and not all((each / share).isfinite().all() for each in average):
        raise RoboCacheError(f"checkpoint: average_share is {share}; train again")
    return state


def _converted(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state of version 3, which had an optimizer for each group of parameters, as one of this version.

    With several processes the parameters of a group were in another order: such a state has no optimizer then, so that
    its policy can be used and its training cannot be continued.
    """
    state = dict(state)
    if type(state["version"]) is int and state["version"] == 3 and isinstance(state.get("optimizers"), list):
        found = state.pop("optimizers")
        alone = isinstance(state.get("ranks"), list) and len(state["ranks"]) == len(found) == 1
        state |= {"version": VERSION, "optimizer": found[0] if alone else None}
    return state


def _check_tensors(where: str, found: object, expected: Mapping[str, Tensor]) -> None:
    """Refuse what is not dense tensors of the names, types and shapes of others."""
    if not isinstance(found, Mapping) or set(found) != set(expected):
        names = set(found) if isinstance(found, Mapping) else set()
        wrong = min(map(str, names ^ set(expected)), default="")
        raise RoboCacheError(f"checkpoint: {where}: {printable(wrong, 60)} is missing or unknown; train again")
    for name, like in expected.items():
        value = found[name]
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.dtype != like.dtype:
            kind = f"{value.layout} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
            raise RoboCacheError(f"checkpoint: {where}: {name} is {printable(kind, 40)}, not {like.dtype}; train again")
        if value.shape != like.shape:
            shapes = f"{printable(tuple(value.shape), 40)}, not {tuple(like.shape)}"
            raise RoboCacheError(f"checkpoint: {where}: {name} has shape {shapes}; train again")


def _check_finite(where: str, found: Mapping[str, Tensor]) -> None:
    for name, value in found.items():
        if not value.isfinite().all():
            raise RoboCacheError(f"checkpoint: {where}: {name} is not finite; train again")
