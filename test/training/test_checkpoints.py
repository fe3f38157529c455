"""Checkpoints: complete or not there, and without code that runs."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.training.checkpoints import checkpoint_in, read_checkpoint, resume, save_checkpoint
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PolicyConfig
from robocache_ros.training.trained_policy import TrainedPolicy
from test.training.conftest import CONFIGS, INFO, losses, new_trainer

OTHER = {key: {"mean": [0.1, 0.0], "std": [1.0, 1.0]} for key in ("proprio", "actions")}


@pytest.mark.parametrize(
    ("kind", "accumulate", "stops"),
    [("transformer", 1, (4, 5, 7)), ("diffusion", 1, (4, 5, 7)), ("transformer", 2, (2,))],
)
def test_a_resumed_run_has_the_very_same_losses(kind, accumulate, stops, tmp_path):
    path, steps = tmp_path / "checkpoint.pt", 12 // accumulate
    whole = new_trainer(kind, accumulate=accumulate)
    expected = losses(whole, steps)
    for stop in stops:  # within an epoch of 5 batches, and at its end
        first = new_trainer(kind, accumulate=accumulate)
        before = losses(first, stop)
        save_checkpoint(path, first, INFO)
        second = new_trainer(kind, accumulate=accumulate)  # seeds the random numbers anew
        resume(path, second, INFO)
        assert before + losses(second, steps - stop) == expected
        assert second.average is not None
        assert whole.average is not None
        assert all(torch.equal(a, b) for a, b in zip(second.average, whole.average, strict=True))


def test_a_checkpoint_has_the_average_and_the_arguments(tmp_path):
    first, path = new_trainer(), tmp_path / "run" / "checkpoint.pt"
    first.train_step()
    average = first.average
    assert average is not None
    save_checkpoint(path, first, INFO, first=False)  # with several processes the first one writes, and no other
    assert not path.parent.exists()
    save_checkpoint(path, first, INFO, {"steps": 9, "policy": "tiny"})
    assert [file.name for file in path.parent.iterdir()] == ["checkpoint.pt"]
    assert read_checkpoint(path).arguments == {"steps": 9, "policy": "tiny"}
    policy = TrainedPolicy.load(path)  # with the average of the weights
    assert policy.info == INFO
    assert all(torch.equal(a, b) for a, b in zip(policy.policy.parameters(), average, strict=True))


def test_a_run_that_is_resumed_has_the_options_that_it_is_given(tmp_path):
    save_checkpoint(tmp_path / "checkpoint.pt", new_trainer(weight_decay=0.0), INFO)
    made = new_trainer(weight_decay=0.5, learning_rate=1e-4, warmup=1, steps=100)
    resume(tmp_path / "checkpoint.pt", made, INFO)
    made.train_step()
    (group,) = made.state_dict()["optimizer"]["param_groups"]
    assert (group["weight_decay"], group["lr"]) == (0.5, 1e-4)


def test_a_run_that_is_resumed_with_an_average_has_that_of_its_own_steps(tmp_path):
    first = new_trainer(average=0.0)
    first.train_step()
    save_checkpoint(tmp_path / "checkpoint.pt", first, INFO)
    made = new_trainer(average=0.5)
    resume(tmp_path / "checkpoint.pt", made, INFO)
    assert made.average is None
    made.train_step()
    for average, newest in zip(made.average or (), made.policy.parameters(), strict=True):
        torch.testing.assert_close(average, newest.detach())


def test_a_write_that_fails_or_weights_that_are_not_finite_leave_the_earlier_checkpoint(tmp_path, monkeypatch):
    path, made = tmp_path / "checkpoint.pt", new_trainer()
    save_checkpoint(path, made, INFO)
    before = path.read_bytes()

    def full(_state: object, file: BinaryIO) -> None:
        file.write(b"half of it")
        try:
            raise OSError(28, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")  # as torch does

    monkeypatch.setattr(torch, "save", full)
    reason = r"checkpoint\.pt: cannot be written \(No space left on device\); free some"
    with pytest.raises(RoboCacheError, match=reason):
        save_checkpoint(path, made, INFO)
    monkeypatch.undo()
    made.policy.positions.data[0] = torch.nan
    with pytest.raises(RoboCacheError, match="not written, weights at step 0 are not finite; lower the learning rate"):
        save_checkpoint(path, made, INFO)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": {"position": "x"}}, "columns are not names by stream"),
        ({"samples": {"position": {"valid": "often"}}}, "samples: position has no numbers by name"),
        ({"ranges": {"proprio": {"min": [0.0, 0.0]}}}, "ranges of proprio are not min, max, q01 and q99"),
        ({"action_offset": 1.5}, "action_offset is 1.5"),
        ({"spec": []}, "spec: a list"),
    ],
)
def test_damaged_facts_of_the_data_are_refused(change, message):
    with pytest.raises(RoboCacheError, match=message):
        replace(INFO, **change)


ROUNDED = {key: {"mean": [1e-15, 0.0], "std": [1.0 + 1e-12, 1.0]} for key in ("proprio", "actions")}
UNKNOWN = {"columns": {"position": ["x"], "square": ["y"]}, "action_offset": 1, "spec": {"rate_hz": 50}}


@pytest.mark.parametrize(
    ("change", "width", "message"),
    [
        ({}, 32, "of another policy: width was 16, is 32; use the same arguments"),
        ({"streams": {"speed": 2}}, 16, "of another dataset: streams differ; "),
        ({"rate_hz": 30, "statistics": OTHER}, 16, "of another dataset: rate_hz was 50, is 30; "),
        ({"statistics": OTHER}, 16, "of another dataset: statistics differ; "),
        ({"statistics": ROUNDED}, 16, ""),
        (UNKNOWN, 16, ""),  # what a checkpoint of an earlier version does not know is not compared
    ],
)
def test_a_checkpoint_of_another_policy_or_dataset_is_refused(tmp_path, change, width, message):
    save_checkpoint(tmp_path / "checkpoint.pt", new_trainer(), INFO)
    with pytest.raises(RoboCacheError, match=message) if message else nullcontext():
        resume(tmp_path / "checkpoint.pt", new_trainer(replace(CONFIGS["plain"], width=width)), replace(INFO, **change))


def test_a_run_has_one_checkpoint(tmp_path):
    path = checkpoint_in(tmp_path / "new" / "run", resumed=False)
    assert path == tmp_path / "new" / "run" / "checkpoint.pt"
    assert path.parent.is_dir()
    with pytest.raises(RoboCacheError, match="does not exist; train without --resume"):
        checkpoint_in(path.parent, resumed=True)
    path.touch()
    assert checkpoint_in(path.parent, resumed=True) == path
    with pytest.raises(RoboCacheError, match="exists; continue it with --resume, or give another --out"):
        checkpoint_in(path.parent, resumed=False)
    with pytest.raises(RoboCacheError, match=r"(Not a directory|File exists); give another --out"):
        checkpoint_in(path, resumed=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A checkpoint with an average, after two steps."""
    made = new_trainer()
    assert all(map(math.isfinite, losses(made, 2)))
    path = tmp_path_factory.mktemp("saved") / "checkpoint.pt"
    save_checkpoint(path, made, INFO, {"steps": 9})
    return path


@pytest.fixture
def altered(saved, tmp_path) -> Callable[[Callable[[Any], object]], Path]:
    """Writes `saved` again after a change of its contents."""

    def write(change: Callable[[Any], object]) -> Path:
        content = torch.load(saved, weights_only=True)
        change(content)
        torch.save(content, tmp_path / "checkpoint.pt")
        return tmp_path / "checkpoint.pt"

    return write


@pytest.mark.parametrize("written_by", ["save_checkpoint", "torch.save"])
def test_a_flipped_bit_is_refused_or_changes_no_action(saved, tmp_path, written_by):
    path = tmp_path / "checkpoint.pt"
    if written_by == "torch.save":  # without a SHA-256: CRCs tell, and what they do not cover is not read
        torch.save(torch.load(saved, weights_only=True), path)
    else:
        path.write_bytes(saved.read_bytes())
    whole, proprio = path.read_bytes(), torch.ones(1, 2, 2)
    expected = TrainedPolicy.load(path).act(proprio)
    size = len(whole)
    # All over the file, and each byte of its first header and of its end.
    places = [*range(0, size, size // 60), *range(64), *range(size - 96, size)]
    accepted = []
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            found = TrainedPolicy.load(path).act(proprio)
        except RoboCacheError:
            continue
        accepted.append(place)
        assert torch.equal(found, expected)
    assert written_by == "torch.save" or not accepted


def put(path: str, value: Any) -> Any:
    """A change of the contents of a checkpoint: `/` separates the keys of nested values."""

    def change(content: Any) -> None:
        *parents, last = path.split("/")
        for name in parents:
            content = content[int(name) if isinstance(content, list) else name]
        if value is KeyError:
            del content[last]
        else:
            content[int(last) if isinstance(content, list) else last] = value

    return pytest.param(change, id=f"{path} {type(value).__name__}")


WEIGHT = "training/policy/of_proprio.weight"


# By place: the contents that are refused there.
REFUSED = {
    WEIGHT: (
        *(torch.full((16, 2), torch.nan), torch.ones(16, 1), torch.ones(16, 2, dtype=torch.float64)),
        *(torch.ones(16, 2).to_sparse(), "text"),
    ),
    "training/policy/more": (torch.ones(1),),
    "training/policy": ([],),
    "training/average": ([torch.ones(1)] * 19, None),  # the first would be broadcast
    "training/average/0": (torch.ones(1), torch.full((6, 16), torch.inf)),
    "training/average_share": (1e-45,),  # weights / share is infinite
    "training/step": (1.5,),
    "training/version": (torch.ones(2),),
    "training/ranks": (KeyError,),
    "training": (1,),
    "policy/proprio": (10**9, "2"),
    "policy/layers": (100,),
    "policy/width": (32,),
    "policy/dropout": ("0",),
    "policy/kind": (torch.ones(1),),
    "policy/cameras": ({"vision": "x"}, {"vision": 1}),
    "policy/unknown": (1,),
    "policy": ([],),
    "data/statistics/proprio/mean": ([0.0, float("nan")],),
    "data/statistics/actions/std": ([1.0, 0.0],),
    "data/statistics/actions": (KeyError,),
    "data/streams": ({"position": 3}, {1: 2}),
    "data/cameras": (None,),
    "data/rate_hz": ("50",),
    "data/actions": (KeyError,),
    "arguments": ([1],),
    "arguments/steps": (torch.ones(1),),
    "more": (1,),
}


@pytest.mark.parametrize("change", [put(place, value) for place, values in REFUSED.items() for value in values])
def test_contents_that_are_not_those_of_a_policy_are_refused(change, altered):
    with pytest.raises(RoboCacheError, match=r"^/[^\n]{1,160}; give another one$"):
        TrainedPolicy.load(altered(change))


def test_weights_that_take_more_memory_than_the_file_are_refused(altered):
    def enlarge(content: Any) -> None:
        content["policy"] |= {"width": 4096, "layers": 2}
        with torch.device("meta"):
            expected = make_policy(PolicyConfig(**content["policy"])).state_dict()
        one = torch.zeros(1)
        content["training"] |= {"average": None, "average_share": 0.0}
        content["training"]["policy"] = {name: one.expand(value.shape) for name, value in expected.items()}

    with pytest.raises(RoboCacheError, match=r"weights of 1,611,\d{3},\d{3} bytes in a file of "):
        TrainedPolicy.load(altered(enlarge))


@pytest.mark.parametrize(
    "change",
    [
        put("training/optimizer", []),
        put("training/optimizer/state", {"0": 1}),
        put("training/optimizer/state", {99: {}}),
        put("training/optimizer/state", {0: {"step": torch.tensor(1.0)}}),
        put("training/ranks", "1"),
        put("training/ranks/0", 1),
        put("training/ranks/0/random", torch.zeros(3, dtype=torch.uint8)),
        put("training/ranks/0/loader", 1),
        put("training/ranks/0/loader/position", "two"),
        put("training/ranks/0/loader/epoch", float("inf")),
        put("training/ranks/0/loader/skipped", -1),
    ],
)
def test_a_state_that_cannot_be_continued_is_refused(change, altered):
    with pytest.raises(RoboCacheError, match=r"^(checkpoint|state): [^\n]{1,160}; (train again|start as many|use .*)$"):
        resume(altered(change), new_trainer(), INFO)


def test_a_checkpoint_of_version_3_and_several_processes_has_a_policy_and_no_training(saved, tmp_path):
    """Its optimizers have the parameters in another order."""
    path = tmp_path / "checkpoint.pt"
    content = torch.load(saved, weights_only=True)
    state = content["training"]
    state |= {"version": 3, "optimizers": [state.pop("optimizer")] * 2, "ranks": state["ranks"] * 2}
    torch.save(content, path)
    assert torch.equal(*(TrainedPolicy.load(each).act(torch.ones(1, 2, 2)) for each in (saved, path)))
    content["training"]["ranks"] = state["ranks"][:1]
    torch.save(content, path)
    with pytest.raises(RoboCacheError, match="optimizer: not the state of its parameters; train again"):
        resume(path, new_trainer(), INFO)


class Harm:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("code of a file has run",))


@pytest.mark.parametrize("content", ["missing", "pipe", "damaged", "text", "pickle", "other"])
def test_what_is_not_a_checkpoint_is_refused(content, tmp_path, capsys):
    path = tmp_path / "checkpoint.pt"
    bytes_of = {"damaged": b"PK\3\4" + bytes(100), "text": b"hello\n", "pickle": pickle.dumps(Harm())}
    if content in bytes_of:
        path.write_bytes(bytes_of[content])
    elif content == "pipe":
        os.mkfifo(path)
    elif content == "other":
        torch.save({"policy": 1}, path)
    with pytest.raises(RoboCacheError, match="not a regular file" if content == "pipe" else None) as caught:
        read_checkpoint(path)
    assert str(caught.value).startswith(f"{path}"[:8])
    assert len(str(caught.value)) < 200
    assert "code of a file" not in capsys.readouterr().out
