"""The training loop, in one process and in several: it learns, refuses what cannot work, and reports.

test_checkpoints.py resumes it. As a program, this is one of the processes: `test_trainer.py RANK FOLDER`.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.monitoring import GPUUtilization
from robocache_ros.training.process_group import process_group
from robocache_ros.training.trainer import Trainer, fill, release_graphs
from robocache_ros.training.training_options import TrainingOptions
from robocache_ros.training.training_progress import TrainingProgress
from test import forked
from test.training.conftest import losses, new_trainer


def test_accumulated_batches_are_one_larger_batch():
    small, large = new_trainer("plain", batch_size=4, accumulate=2), new_trainer("plain", batch_size=8)
    assert losses(small, 5) == pytest.approx(losses(large, 5), rel=1e-4)  # sums of float32 in another order


@pytest.mark.parametrize("bf16", [False, True])
def test_the_loss_falls(bf16):
    seen = losses(new_trainer("transformer", steps=60, bf16=bf16), 60)
    assert sum(seen[-5:]) < 0.5 * sum(seen[:5])


def test_the_average_is_of_the_weights_after_each_step_and_not_of_the_random_ones():
    made, without = new_trainer("transformer", average=0.5), new_trainer("transformer", average=0.0)
    seen = []
    for _ in range(2):
        made.train_step()
        seen.append([p.detach().clone() for p in made.policy.parameters()])
    for average, older, newer in zip(made.average or (), *seen, strict=True):
        torch.testing.assert_close(average, (older + 2 * newer) / 3)
    without.train_step()
    assert without.average is without.state_dict()["average"] is None


def test_waits_for_data_are_measured():
    made = new_trainer("transformer")
    losses(made, 6)
    result = made.data_wait.result()
    assert result.steps == 5
    assert 0 < result.share < 1


def test_the_learning_rate_rises_and_falls():
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
def test_wrong_options_are_named(options, message):
    with pytest.raises(RoboCacheError, match=message):
        TrainingOptions(**options)


# Groups that have been left. A thread of Gloo can need the interpreter to end its last exchange: where the last
# reference to its group ends in a garbage collection, the two wait for each other.
GROUPS: list[Any] = []


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip_norm": 0.0}], ids=str)
def test_a_group_of_one_process_has_the_losses_of_a_single_process(options):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    GROUPS.append(torch.distributed.group.WORLD)
    try:
        exchanged = losses(new_trainer("transformer", **options), 4)
    finally:
        torch.distributed.destroy_process_group()
    assert exchanged == losses(new_trainer("transformer", **options), 4)


def test_a_graph_needs_a_gpu_and_batches_of_one_size():
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
def test_a_state_of_another_training_is_refused(change, message):
    state = new_trainer("transformer").state_dict() | change
    with pytest.raises(RoboCacheError, match=message):
        new_trainer("transformer").load_state_dict(state)


def test_a_state_of_version_3_is_continued():
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
def test_a_cuda_graph_has_the_bits_of_the_steps_it_replays_and_is_the_default(options, caplog):
    options = {"device": "cuda", "deterministic": True, **options}
    plain = losses(new_trainer("plain", cuda_graph=False, **options), 12)
    with caplog.at_level("INFO"):
        graphed = losses(new_trainer("plain", **options), 12)
    assert caplog.messages == ["CUDA graph: captured, further steps are replays of it"]
    assert graphed == plain


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:TensorFloat32")  # of torch's compiler
def test_a_cuda_graph_of_a_compiled_policy_has_nearly_the_losses_of_the_policy():
    plain = losses(new_trainer("plain", device="cuda", cuda_graph=False), 12)
    compiled = losses(new_trainer("plain", device="cuda", compile=True), 12)
    assert compiled == pytest.approx(plain, rel=1e-3)  # compiled operations round in other places


@pytest.mark.gpu
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("kind", ["plain", "diffusion"])
def test_a_step_that_cannot_be_captured_runs_as_it_is(kind, monkeypatch, caplog):
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
def test_a_cuda_graph_of_a_parallel_training_has_the_losses_of_its_steps(options):
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
def test_deterministic_operations_are_chosen():
    losses(new_trainer("transformer", deterministic=True), 2)
    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.gpu
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_on_a_gpu_a_resumed_run_has_the_very_same_losses(cuda_graph):
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
def test_a_graph_is_captured_anew_for_a_state_that_is_loaded():
    used = new_trainer("diffusion", device="cuda", cuda_graph=True, deterministic=True)
    losses(used, 5)
    state = copy.deepcopy(used.state_dict())
    expected = losses(used, 7)
    used.load_state_dict(state)
    assert losses(used, 7) == pytest.approx(expected, rel=1e-5)


# What a training reports.


@pytest.fixture
def trainer() -> Trainer:
    return new_trainer(steps=4, warmup=1)


def test_a_line_has_the_loss_the_speed_and_the_wait(trainer):
    lines: list[str] = []
    times = iter([0.0, 0.0, 2.0, 4.0, 4.0, 4.5, 5.0, 5.0])  # two for a report
    with TrainingProgress(trainer, 2, write=lines.append, clock=lambda: next(times)) as progress:
        for _ in range(4):
            progress.update(trainer.train_step())
    assert len(lines) == 2
    assert lines[0].startswith("step 2: loss 0.")
    assert ", 0.5 steps/s, 4 s left, " in lines[0]
    assert ", 2 steps/s, " in lines[1]
    assert lines[1].endswith("% waiting for data")


def test_slow_steps_are_reported_after_5_s_and_then_every_30_s():
    trainer = new_trainer(steps=10_000, warmup=1)
    lines: list[str] = []
    now = 0.0
    with TrainingProgress(trainer, 50, write=lines.append, clock=lambda: now) as progress:
        for _ in range(30):
            now += 2.5
            progress.update(trainer.train_step())
    assert [line.split(":")[0] for line in lines] == ["step 2", "step 14", "step 26"]
    assert ", 0.4 steps/s, 6 h 57 min left, " in lines[0]


def test_a_driver_that_fails_does_not_fail_the_training(trainer, capsys, monkeypatch):
    class Failing:
        def __init__(self, _device: int) -> None:
            self.result = GPUUtilization(50.0, 40.0, 60.0, 3)

        def start(self) -> Failing:
            return self

        def stop(self) -> None:
            raise RoboCacheError("GPU 0: lost; check nvidia-smi")

    monkeypatch.setattr("robocache_ros.training.training_progress.GPUUtilizationMonitor", Failing)
    loss = trainer.train_step()
    trainer.device = torch.device("cuda")
    lines: list[str] = []
    with TrainingProgress(trainer, 1, write=lines.append) as progress:
        progress.update(loss)
    assert lines[0].endswith("waiting for data, GPU 50 %")
    assert capsys.readouterr().err == "GPU utilisation is of a part of the run: GPU 0: lost; check nvidia-smi\n"


def test_a_loss_that_is_not_finite_and_reports_of_no_step_are_errors(trainer):
    with pytest.raises(RoboCacheError, match="loss: nan at step 0; lower the learning rate"):
        TrainingProgress(trainer, 1, write=lambda _: None).update(torch.tensor(torch.nan))
    with pytest.raises(RoboCacheError, match="report_every: 0 is less than 1"):
        TrainingProgress(trainer, 0)


@pytest.mark.parametrize(("terminal", "expected"), [(False, "step 1: loss "), (True, "100 %")])
def test_stdout_has_lines_and_on_a_terminal_a_bar(terminal, expected, trainer, capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    with TrainingProgress(trainer, 1) as progress:
        for _ in range(4):
            progress.update(trainer.train_step())
    assert expected in capsys.readouterr().out


def test_tensorboard_has_each_value(trainer, tmp_path):
    with warnings.catch_warnings():  # of what TensorBoard imports
        warnings.simplefilter("ignore")
        pytest.importorskip("tensorboard")
        with TrainingProgress(trainer, 1, tmp_path, write=lambda _: None) as progress:
            progress.update(trainer.train_step())
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["loss", "steps_per_s", "data_wait_share"]


# Several processes train one policy: as one process with a larger batch does, and after an interruption.

ROOT = Path(__file__).parents[2]
PROCESSES = 3  # two summands have the same sum in any order
STEPS, STOP = 6, 3
JOINED = {"config": "plain", "accumulate": 2}
RESUMED: dict[str, dict[str, Any]] = {
    "float32": {"config": "diffusion", "accumulate": 2},
    "bf16": {"config": "transformer", "bf16": True, "clip_norm": 0.0},
}


def run_process(rank: int, folder: str) -> None:
    """Train, also with an interruption, and write losses, weights and averages."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", PROCESSES)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES)
    found = {"joined": _found(made := new_trainer(batch_size=4, **JOINED), losses(made, STEPS))}
    for name, options in RESUMED.items():
        whole = new_trainer(batch_size=4, **options)
        found[name] = _found(whole, losses(whole, STEPS))
        first = new_trainer(batch_size=4, **options)
        before, state = losses(first, STOP), first.state_dict()
        second = new_trainer(batch_size=4, **options)
        second.load_state_dict(state)
        found[f"{name} resumed"] = _found(second, before + losses(second, STEPS - STOP))
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.barrier()  # none closes its connections while another one uses them
    torch.distributed.destroy_process_group()


def _found(made: Trainer, seen: list[float]) -> dict[str, Any]:
    return {"losses": seen, "weights": made.policy.state_dict(), "average": made.average}


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict[str, Any]]:
    """What each of the processes has found."""
    folder = tmp_path_factory.mktemp("parallel")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = (sys.executable, __file__)
    started = [forked.Popen([*command, str(rank), str(folder)], env=environment) for rank in range(PROCESSES)]
    assert [process.wait() for process in started] == [0] * PROCESSES
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(PROCESSES)]


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two trainings have the same weights and averages, bit by bit."""
    return all(torch.equal(a["weights"][key], b["weights"][key]) for key in a["weights"]) and all(
        torch.equal(x, y) for x, y in zip(a["average"], b["average"], strict=True)
    )


@pytest.mark.slow
def test_processes_train_as_one_with_their_joined_batches(results):
    separate = new_trainer(batch_size=4 * PROCESSES, **JOINED)
    expected = losses(separate, STEPS)
    means = torch.tensor([each["joined"]["losses"] for each in results]).mean(0).tolist()
    # Sums of float32 in another order. Weights differ more: some gradients are rounding alone, which Adam scales up.
    assert means == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["joined", *RESUMED])
def test_all_processes_have_the_same_weights_and_averages(results, case):
    assert all(same(each[case], results[0][case]) for each in results)


@pytest.mark.slow
@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_of_several_processes_has_the_very_same_bits(results, case):
    for each in results:
        assert each[f"{case} resumed"]["losses"] == each[case]["losses"]
        assert same(each[f"{case} resumed"], each[case])


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with process_group("cpu") as group:
        assert (group.rank, group.size, group.first, group.device.type) == (0, 1, True, "cpu")
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("device", "problem"),
    [("tpu", "'tpu' is not auto, cpu or cuda"), ("cuda", "there is no CUDA device; use auto or cpu")],
)
def test_a_device_that_is_not_there_is_refused(device, problem, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RoboCacheError, match=problem), process_group(device):
        pass


if __name__ == "__main__":
    run_process(int(sys.argv[1]), sys.argv[2])
