"""The training loop: batches of a loader to steps of an optimizer, resumed where it stopped."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, distributed
from torch.optim.swa_utils import get_ema_multi_avg_fn

from robocache_ros.errors import RoboCacheError
from robocache_ros.monitoring import DataWaitMeter
from robocache_ros.training.gradient_exchange import GradientExchange
from robocache_ros.training.graphed_step import GraphedStep
from robocache_ros.training.policies.policy import Policy
from robocache_ros.training.training_options import TrainingOptions

VERSION = 3


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
        self._graph = self._uses_graph()
        self._exchange: GradientExchange | None = None
        if self._parallel:
            self._exchange = GradientExchange(self._parameters, list(policy.buffers()))
        self._averaged = [torch.zeros_like(p) for p in self._parameters] if options.average else None
        self._averaged_share = 0.0  # of all weights so far; the rest are the zeros of the start
        self._update_average = get_ema_multi_avg_fn(options.average)  # type: ignore[no-untyped-call]
        groups = self._exchange.groups if self._exchange is not None else [self._parameters]
        self._optimizers = [self._make_optimizer(group) for group in groups]
        self._model: Any = torch.compile(policy, dynamic=False) if options.compile else policy
        self._step_on: Any = GraphedStep(self._plain_step) if self._graph else self._plain_step
        self._batches: Iterator[Mapping[str, Any]] | None = None
        torch.manual_seed(options.seed + (distributed.get_rank() if self._parallel else 0))

    def train_step(self) -> Tensor:
        """Run a step and return its loss, a scalar on the device: reading it waits for the device."""
        rate = self.options.rate_at(self.step)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
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
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "ranks": ranks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called, with the options of this trainer.

        Errors:
            RoboCacheError: the state is of another version, of another number of processes, or of another loader.
        """
        ranks = state.get("ranks", [])
        rank, size = (distributed.get_rank(), distributed.get_world_size()) if self._parallel else (0, 1)
        if state.get("version") != VERSION:
            raise RoboCacheError(f"checkpoint: of version {state.get('version')}, here {VERSION}; train again")
        if len(ranks) != size:
            raise RoboCacheError(f"checkpoint: of {len(ranks)} processes, here {size}; start as many")
        mine = ranks[rank]
        self.loader.load_state_dict(mine["loader"])
        self.policy.load_state_dict(state["policy"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict({**optimizer.state_dict(), "state": saved["state"]})
        if self._graph:
            self._step_on = GraphedStep(self._plain_step)  # the old graph has the old state of the optimizer
        if self._averaged is not None:
            kept = state["average"] is not None
            self._averaged_share = state["average_share"] if kept else 0.0
            for value, saved in zip(self._averaged, state["average"] if kept else self._averaged, strict=True):
                value.copy_(saved)
        torch.set_rng_state(mine["random"].cpu())
        if "random_cuda" in mine and self.device.type == "cuda":
            torch.cuda.set_rng_state(mine["random_cuda"].cpu(), self.device)
        self.step = int(state["step"])
        self._batches = None

    def _uses_graph(self) -> bool:
        if not self.options.cuda_graph:
            return False
        if self.device.type != "cuda":
            raise RoboCacheError("cuda_graph: needs a GPU; leave it out")
        return True

    def _make_optimizer(self, parameters: Sequence[Tensor]) -> torch.optim.AdamW:
        options = self.options
        # A graph reads the learning rate from memory, so that it can change.
        rate: Any = torch.tensor(options.learning_rate, device=self.device) if self._graph else 0.0
        return torch.optim.AdamW(
            parameters,
            rate,
            weight_decay=options.weight_decay,
            fused=self.device.type == "cuda",
            capturable=self._graph,
        )

    def _plain_step(self, batches: Iterable[Mapping[str, Tensor]]) -> Tensor:
        """A step on `accumulate` batches, which a CUDA graph can capture."""
        count = self.options.accumulate
        for each in self._parameters:
            each.grad = None
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(batches, start=1):
            loss = self._loss(batch) / count
            if self._exchange is not None and number == count:  # once per step
                self._exchange.arm()
            # Not in a thread of its own, which a small step would spend more time on than on its operations.
            with torch.autograd.set_multithreading_enabled(False):
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self._apply_gradients()
        return total

    def _apply_gradients(self) -> None:
        if self._exchange is not None:
            self._exchange.finish()
        if self.options.clip_norm:
            for number in range(len(self._optimizers)):
                self._await(number)
            torch.nn.utils.clip_grad_norm_(self._parameters, self.options.clip_norm)
        for number, optimizer in enumerate(self._optimizers):
            self._await(number)
            optimizer.step()
        if self._averaged is not None:
            self._update_average(self._averaged, self._parameters, 0)

    def _loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        cached = not self._graph  # a cache of converted weights would be part of the graph
        with torch.autocast(self.device.type, torch.bfloat16, self.options.bf16, cached):
            loss: Tensor = self._model(batch)
        return loss

    def _await(self, number: int) -> None:
        """Wait for the gradients of an optimizer."""
        if self._exchange is not None:
            self._exchange.wait(number)

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
