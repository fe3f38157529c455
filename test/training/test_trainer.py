"""The training loop: it learns, and it refuses what cannot work. test_checkpoints.py resumes it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.training.trainer import fill, release_graphs
from robocache_ros.training.training_options import TrainingOptions
from test.training.conftest import losses, new_trainer


def test_accumulated_batches_are_one_larger_batch() -> None:
    small, large = new_trainer("plain", batch_size=4, accumulate=2), new_trainer("plain", batch_size=8)

    pairs = zip(losses(small, 5), losses(large, 5), strict=True)

    # Sums of float32 in another order.
    assert all(a == pytest.approx(b, rel=1e-4) for a, b in pairs)


@pytest.mark.parametrize("bf16", [False, True])
def test_the_loss_falls(bf16: bool) -> None:
    seen = losses(new_trainer("transformer", steps=60, bf16=bf16), 60)

    assert sum(seen[-5:]) < 0.5 * sum(seen[:5])


def test_the_average_is_of_the_weights_after_each_step_and_not_of_the_random_ones() -> None:
    made, without = new_trainer("transformer", average=0.5), new_trainer("transformer", average=0.0)
    seen = []
    for _ in range(2):
        made.train_step()
        seen.append([p.detach().clone() for p in made.policy.parameters()])

    for average, older, newer in zip(made.average or (), *seen, strict=True):
        torch.testing.assert_close(average, (older + 2 * newer) / 3)
    without.train_step()
    assert without.average is without.state_dict()["average"] is None


def test_waits_for_data_are_measured() -> None:
    made = new_trainer("transformer")
    losses(made, 6)

    result = made.data_wait.result()
    assert result.steps == 5
    assert 0 < result.share < 1


def test_the_learning_rate_rises_and_falls() -> None:
    options = TrainingOptions(learning_rate=1.0, steps=20, warmup=4)
    rates = [options.rate_at(step) for step in range(20)]

    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert all(b < a for a, b in pairwise(rates[4:]))
    assert options.rate_at(20) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0; give a number of at least 1"),
        ({"clip_norm": float("nan")}, "clip_norm is nan; give a number of at least 0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf; give a number above 0"),
        ({"average": 1.0}, "average is 1.0; give a number from 0 to below 1"),
        ({"seed": -1}, "seed is -1; give a number from 0 to 4294967295"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RoboCacheError, match=message):
        TrainingOptions(**options)


# Groups that have been left. A thread of Gloo can need the interpreter to end its last exchange: where the last
# reference to its group ends in a garbage collection, the two wait for each other.
GROUPS: list[Any] = []


def join_group() -> None:
    """Join a group of one process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    GROUPS.append(torch.distributed.group.WORLD)


@pytest.fixture
def process_group() -> Iterator[None]:
    """A group of one process."""
    join_group()
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip_norm": 0.0}], ids=str)
def test_a_group_of_one_process_has_the_losses_of_a_single_process(options: dict[str, Any]) -> None:
    exchanged = losses(new_trainer("transformer", **options), 4)
    torch.distributed.destroy_process_group()
    separate = losses(new_trainer("transformer", **options), 4)
    join_group()

    assert exchanged == separate


def test_a_graph_needs_a_gpu_and_batches_of_one_size() -> None:
    with pytest.raises(RoboCacheError, match="cuda_graph: needs a GPU"):
        new_trainer("transformer", cuda_graph=True)
    own = {"proprio": torch.zeros(4, 2)}
    fill(own, {"proprio": torch.ones(4, 2)})
    assert own["proprio"].equal(torch.ones(4, 2))
    with pytest.raises(RoboCacheError, match=r"cuda_graph: proprio is \(3, 2\), not \(4, 2\); use batches of one size"):
        fill(own, {"proprio": torch.ones(3, 2)})
    with pytest.raises(RoboCacheError, match="fewer samples than a batch"):
        new_trainer("transformer", batch_size=41).train_step()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"version": 0}, "of version 0, here 4"), ({"ranks": [{}, {}]}, "of 2 processes, here 1; start as many")],
)
def test_a_state_of_another_training_is_refused(change: dict[str, Any], message: str) -> None:
    state = new_trainer("transformer").state_dict() | change

    with pytest.raises(RoboCacheError, match=message):
        new_trainer("transformer").load_state_dict(state)


def test_a_state_of_version_3_is_continued() -> None:
    """It had a list of optimizers."""
    first = new_trainer("transformer")
    before = losses(first, 5)
    state = first.state_dict() | {"version": 3}
    state["optimizers"] = [state.pop("optimizer")]
    second = new_trainer("transformer")

    second.load_state_dict(state)

    assert before + losses(second, 7) == losses(new_trainer("transformer"), 12)


@pytest.mark.gpu
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"bf16": True}], ids=str)
def test_a_cuda_graph_has_the_bits_of_the_steps_it_replays_and_is_the_default(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    options = {"device": "cuda", "deterministic": True, **options}
    plain = losses(new_trainer("plain", cuda_graph=False, **options), 12)
    with caplog.at_level("INFO"):
        graphed = losses(new_trainer("plain", **options), 12)

    assert caplog.messages == ["CUDA graph: captured, further steps are replays of it"]
    assert graphed == plain


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:TensorFloat32")  # of torch's compiler
def test_a_cuda_graph_of_a_compiled_policy_has_nearly_the_losses_of_the_policy() -> None:
    plain = losses(new_trainer("plain", device="cuda", cuda_graph=False), 12)
    compiled = losses(new_trainer("plain", device="cuda", compile=True), 12)

    assert compiled == pytest.approx(plain, rel=1e-3)  # compiled operations round in other places


@pytest.mark.gpu
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("kind", ["plain", "diffusion"])
def test_a_step_that_cannot_be_captured_runs_as_it_is(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"device": "cuda", "deterministic": True}
    expected = losses(new_trainer(kind, cuda_graph=False, **options), 8)
    made = new_trainer(kind, **options)
    computed = type(made.policy).forward

    def waits(self: Any, batch: Any) -> Any:
        loss = computed(self, batch)
        loss.item()
        return loss

    monkeypatch.setattr(type(made.policy), "forward", waits)
    with caplog.at_level("INFO"):
        found = losses(made, 8)

    assert found == expected
    (message,) = caplog.messages
    assert message.startswith("CUDA graph: not used, the step cannot be captured: ")
    with pytest.raises(RuntimeError):
        losses(new_trainer(kind, cuda_graph=True, **options), 8)


@pytest.fixture
def nccl_group() -> Iterator[None]:
    """A group of one process with a GPU."""
    torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    release_graphs()
    torch.distributed.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.usefixtures("nccl_group")
@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:TensorFloat32")  # of torch's compiler
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"compile": True}], ids=str)
def test_a_cuda_graph_of_a_parallel_training_has_the_losses_of_its_steps(options: dict[str, Any]) -> None:
    plain = losses(new_trainer("plain", device="cuda", cuda_graph=False, **{**options, "compile": False}), 16)
    graphed = losses(new_trainer("plain", device="cuda", cuda_graph=True, **options), 16)

    # The gradient of attention is a sum whose order varies, and compiled operations round in other places.
    assert graphed == pytest.approx(plain, rel=1e-3)


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Restores the setting of the process."""
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_deterministic_operations_are_chosen() -> None:
    losses(new_trainer("transformer", deterministic=True), 2)

    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.gpu
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_on_a_gpu_a_resumed_run_has_the_very_same_losses(cuda_graph: bool) -> None:
    options = {"device": "cuda", "cuda_graph": cuda_graph, "deterministic": True}
    expected = losses(new_trainer("diffusion", **options), 12)
    first = new_trainer("diffusion", **options)
    before, state = losses(first, 5), first.state_dict()
    second = new_trainer("diffusion", **options)
    second.load_state_dict(state)

    after = losses(second, 7)

    # Random numbers of a graph come from the same generator as those of plain steps.
    assert before + after == pytest.approx(expected, rel=1e-5 if cuda_graph else 0)


@pytest.mark.gpu
@pytest.mark.usefixtures("deterministic")
def test_a_graph_is_captured_anew_for_a_state_that_is_loaded() -> None:
    used = new_trainer("diffusion", device="cuda", cuda_graph=True, deterministic=True)
    losses(used, 5)
    state = copy.deepcopy(used.state_dict())
    expected = losses(used, 7)

    used.load_state_dict(state)

    assert losses(used, 7) == pytest.approx(expected, rel=1e-5)
