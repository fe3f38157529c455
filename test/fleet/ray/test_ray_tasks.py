"""Tasks that Ray runs: what is run again, and what is not."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import executors as ray_tasks
from robocache_ros.exporter.executors import Machines, RayTasks, Resources, Task

ray = pytest.importorskip("ray", reason="needs ray (the fleet extra)")
GB = 10**9


def tasks(*names: str, needs: Resources = Resources(memory_bytes=GB)) -> list[Task]:  # noqa: B008
    return [Task(name, 1000 - number, needs) for number, name in enumerate(names)]


def run(executor: RayTasks, work: Callable[..., Any], given: list[Task]) -> dict[str, Any]:
    """The result of each task, by its name."""
    with executor:
        done = [(task.name, result) for task, result in executor.map(work, given, lambda _event: None)]
    assert len(dict(done)) == len(done)
    return dict(done)


def test_the_result_of_each_task_comes_once(ray_address: str) -> None:
    def work(task: Task, _tell: object) -> str:
        return task.name.upper()

    names = [f"lift {number}" for number in range(50)]
    assert run(RayTasks(), work, tasks(*names)) == {name: name.upper() for name in names}


def test_a_task_whose_process_is_killed_is_run_again(ray_address: str, tmp_path: Path) -> None:
    def work(task: Task, _tell: object) -> int:
        attempts = len(list(tmp_path.iterdir()))
        (tmp_path / str(attempts)).touch()
        if attempts < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return attempts

    assert run(RayTasks(), work, tasks("lift")) == {"lift": 2}


def test_an_error_is_of_its_task_only_and_is_not_repeated(ray_address: str, tmp_path: Path) -> None:
    def work(task: Task, _tell: object) -> str:
        with (tmp_path / task.name).open("x"):  # which fails if it is repeated
            pass
        if task.name == "bad":
            raise ValueError("no such row")
        if task.name == "refused":
            raise RoboCacheError("refused: has no topic")
        return "done"

    found = run(RayTasks(), work, tasks("good", "bad", "refused", "another"))

    assert (found["good"], found["another"]) == ("done", "done")
    assert isinstance(found["bad"], RoboCacheError)
    assert str(found["bad"]) == "bad: ValueError: no such row; the log of its Ray task has the traceback"
    assert isinstance(found["refused"], RoboCacheError)
    assert str(found["refused"]) == "refused: has no topic"


def test_an_error_of_the_target_ends_the_others(ray_address: str) -> None:
    def work(task: Task, _tell: object) -> None:
        raise OSError(28, "No space left on device", "/target")

    with pytest.raises(OSError, match="No space left on device: '/target'"):
        run(RayTasks(), work, tasks("lift"))


def test_a_task_runs_with_the_resources_that_are_stated(ray_address: str) -> None:
    def work(_task: Task, _tell: object) -> Any:
        context = ray.get_runtime_context()
        return context.get_assigned_resources(), context.get_task_name()

    needs = Resources(cpus=0.5, memory_bytes=GB)
    assert run(RayTasks(), work, tasks("lift", needs=needs)) == {"lift": ({"CPU": 0.5, "memory": GB}, "lift")}


class ScriptedRay:
    """Stands in for the module `ray`: what the attempts of tasks give is scripted, and what they asked for is noted."""

    exceptions = ray.exceptions

    def __init__(self, *script: Any, memory: int = 64 * GB) -> None:
        self.requested: list[dict[str, Any]] = []
        self.most_running = 0
        self._script, self._running, self._memory = deque(script), 0, memory

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 2.0, "memory": self._memory}}]

    def put(self, work: object) -> object:
        return work

    def remote(self, **_options: Any) -> Callable[..., Any]:
        return lambda _function: SimpleNamespace(options=self._options)

    def _options(self, **requested: Any) -> Any:
        def submit(*_arguments: object) -> int:
            self.requested.append(requested)
            self._running += 1
            self.most_running = max(self.most_running, self._running)
            return len(self.requested)

        return SimpleNamespace(remote=submit)

    def wait(self, running: list[int], num_returns: int, timeout: float) -> Any:
        return running[:1], running[1:]

    def get(self, _reference: int) -> Any:
        self._running -= 1
        reported = self._script.popleft()
        if isinstance(reported, Exception):
            raise reported
        return reported


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[RayTasks, ScriptedRay]]:
    def make(*script: Any, memory: int = 64 * GB) -> tuple[RayTasks, ScriptedRay]:
        module = ScriptedRay(*script, memory=memory)
        executor = RayTasks()
        executor._ray, executor._machines = module, Machines(module)
        monkeypatch.setattr(RayTasks, "__enter__", lambda executor: executor)
        return executor, module

    return make


DONE = ray_tasks.Finished("done")
OUT_OF_MEMORY = ray.exceptions.OutOfMemoryError("the node runs low on memory")
LOST = ray.exceptions.NodeDiedError("the node is gone")
CRASHED = ray.exceptions.WorkerCrashedError()


def no_work(*_: object) -> None: ...


def test_a_task_out_of_memory_is_run_once_more_with_twice_the_memory(scripted: Callable[..., Any]) -> None:
    executor, module = scripted(OUT_OF_MEMORY, DONE)
    assert run(executor, no_work, tasks("lift")) == {"lift": "done"}
    assert [requested["memory"] for requested in module.requested] == [GB, 2 * GB]


def test_a_task_out_of_memory_twice_fails_on_its_own(scripted: Callable[..., Any]) -> None:
    executor, module = scripted(OUT_OF_MEMORY, DONE, OUT_OF_MEMORY)  # the second one is of the other task
    found = run(executor, no_work, tasks("large", "small"))
    assert str(found["large"]) == "large: 2.0 GB of memory are not enough; state more"
    assert found["small"] == "done"
    assert len(module.requested) == 3


def test_no_task_asks_for_more_memory_than_the_largest_machine_has(scripted: Callable[..., Any]) -> None:
    executor, module = scripted(OUT_OF_MEMORY, DONE, memory=3 * GB // 2)
    run(executor, no_work, tasks("lift"))
    assert [requested["memory"] for requested in module.requested] == [GB, 3 * GB // 2]


def test_a_lost_machine_costs_no_attempt(scripted: Callable[..., Any]) -> None:
    executor, module = scripted(*[LOST] * 100, DONE)
    assert run(executor, no_work, tasks("lift")) == {"lift": "done"}
    assert len(module.requested) == 101


def test_a_task_that_always_ends_its_process_is_given_up(scripted: Callable[..., Any]) -> None:
    executor, module = scripted(CRASHED, DONE, *[CRASHED] * (ray_tasks.CRASHES - 1))
    found = run(executor, no_work, tasks("cursed", "good"))
    assert "cursed: its process ended 32 times" in str(found["cursed"])
    assert found["good"] == "done"
    assert len(module.requested) == ray_tasks.CRASHES + 1


def test_twice_as_many_tasks_are_submitted_as_can_run(scripted: Callable[..., Any]) -> None:
    executor, module = scripted(*[DONE] * 20)
    run(executor, no_work, tasks(*map(str, range(20))))
    assert module.most_running == 4  # of two cores
