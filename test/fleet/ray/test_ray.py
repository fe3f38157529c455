"""Exports whose recordings are converted by Ray, and which of its tasks are run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import executors
from robocache_ros.exporter.executors import Machines, RayTasks, Resources, Task, _check, chosen_executor
from robocache_ros.exporter.piece_store import PieceStore
from robocache_ros.exporter.pieces import RecordingTask, _MakePieces
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Converted, Event, Started
from robocache_ros.exporter.target import OWN_PIECES, piece_store
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import ROBOCACHE, Contents, contents
from test.export.sensor_recording import sensor_recording, sensor_spec
from test.exporting import export
from test.fleet.conftest import objects

# One Ray on this machine for all tests, and the recordings that they export.

ROOT, GB = Path(__file__).parents[3], 10**9
CPUS = 4  # of the Ray, whatever this machine has

os.environ.setdefault(executors.ONLY_LOOPBACK, "0")  # before Ray is imported
ray = pytest.importorskip("ray", reason="needs ray (the fleet extra)")


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """The address of a Ray, to which this process is connected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # of its workers
        patch.delenv(executors.ADDRESS, raising=False)
        with executors.ray_session(None, slots=CPUS) as session:
            yield session.get_runtime_context().gcs_address


@pytest.fixture(scope="session")
def recordings(tmp_path_factory) -> list[Path]:
    """Five recordings of different lengths."""
    folder = tmp_path_factory.mktemp("recordings")
    return [sensor_recording(folder / f"recording_{seed}", seed, 0.6 + 0.1 * seed) for seed in range(5)]


@pytest.fixture(scope="session")
def undisturbed(recordings, tmp_path_factory) -> Contents:
    """The dataset of the recordings that one process makes."""
    return contents(export(recordings, sensor_spec(), tmp_path_factory.mktemp("undisturbed") / "set").out)


# Exports whose recordings are converted by Ray.


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_makes_the_bytes_of_one_process(ray_address, recordings, undisturbed, tmp_path, workers):
    reported: list[Event] = []
    # Little memory: what is free on this machine must not limit the number of tasks.
    executor = chosen_executor("ray", per_task=f"cpus={CPUS // workers},memory=1MB")
    out = export(recordings, sensor_spec(), tmp_path / "set", executor=executor, progress=reported.append).out
    assert contents(out) == undisturbed
    assert [event.jobs for event in reported if isinstance(event, Started)] == [workers]
    assert sum(isinstance(event, Converted) for event in reported) == len(recordings)


def test_a_recording_that_cannot_be_read_is_found_by_its_task(ray_address, recordings, tmp_path):
    bad = tmp_path / "bad.mcap"
    bad.write_bytes(b"no recording")
    with pytest.raises(RoboCacheError) as error:
        export([*recordings, bad], sensor_spec(), tmp_path / "set", executor="ray")
    first, last = str(error.value).splitlines()
    assert "bad.mcap" in first
    assert "1 of 6 recordings failed; the others are kept" in last
    assert piece_store(tmp_path / "set").count() == 5


def command(recordings: list[Path], tmp_path: Path, *more: str) -> list[str]:
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(sensor_spec().to_dict()))
    options = ["--spec", str(spec), "--out", str(tmp_path / "set"), "--executor", "ray"]
    return [*ROBOCACHE, "export", *map(str, recordings), *options, *more]


def shell(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, **options)


def test_the_command_connects_to_a_cluster_and_prints_its_document_only(ray_address, recordings, undisturbed, tmp_path):
    done = shell(command(recordings, tmp_path, "--json", "--address", ray_address))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["episodes"] > 0
    assert contents(tmp_path / "set") == undisturbed


def test_a_dataset_in_a_bucket_has_the_bytes_of_a_local_one(s3, recordings, undisturbed, tmp_path):
    # With a Ray of its own, whose workers have the environment of the bucket.
    done = shell([*command(recordings, tmp_path), "--out", f"{s3.url}/set"], env={**os.environ, **s3.env})
    assert done.returncode == 0, done.stderr
    assert objects(s3, "set/") == undisturbed


def test_ray_appends_the_files_of_one_process(ray_address, recordings, tmp_path):
    pytest.importorskip("deltalake", reason="needs deltalake (the fleet extra)")
    options, found = DatasetOptions(formats=("delta",), media="none"), []
    for name in ("local", "ray"):
        for some in (recordings[:1], recordings[1:]):
            export(some, sensor_spec(), tmp_path / name, options, append=True, executor=name)
        files = contents(tmp_path / name)
        found.append({file: files[file] for file in files if file.endswith((".parquet", "robocache.json"))})
    assert len(found[0]) > 4
    assert found[1] == found[0]


def test_a_machine_without_the_folder_of_the_dataset_is_named(recordings, tmp_path):
    work = _MakePieces({}, PieceStore(tmp_path / "elsewhere" / "pieces"), False)
    task = RecordingTask("lift", 0, Resources(), PlannedRecording(recordings[0]), ())
    with pytest.raises(RoboCacheError, match="elsewhere: is not on this machine; use a bucket, or a shared folder"):
        work(task, print)


def of_session(folder: Path) -> list[bytes]:
    """The processes of a Ray whose files are in a folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(file.read_bytes())
    return [line for line in found if f"{folder}/ray-".encode() in line]


def test_ctrl_c_ends_a_ray_that_was_started_and_keeps_the_pieces(recordings, tmp_path):
    out = tmp_path / "set"
    folder = Path(tempfile.mkdtemp(prefix="t"))  # short: its path is in the names of sockets
    program = ROOT / "test" / "export" / "interrupted_export.py"
    _python, _option, _code, *arguments = command(recordings, tmp_path)
    done = subprocess.run(
        [sys.executable, str(program), "Converted", str(signal.SIGINT.value), *arguments],
        capture_output=True, text=True, check=False, cwd=ROOT, start_new_session=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (130, "")
    ours = [line for line in done.stderr.splitlines() if not line.startswith("[")]  # Ray logs that a machine is slow
    assert [line.partition("; ")[0] for line in ours] == ["robocache: stopped"], done.stderr
    assert of_session(folder) == []
    folder.rmdir()  # it is empty
    assert [entry.name for entry in out.iterdir()] == [OWN_PIECES]
    # A task that is killed while it puts its piece leaves an attempt, which nothing reads.
    assert not list((out / OWN_PIECES).glob("draft-*"))
    assert piece_store(out).count() > 0


def test_a_cluster_that_does_not_answer_is_one_line(recordings, tmp_path):
    done = shell(command(recordings, tmp_path, "--address", "127.0.0.1:1"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "address: 127.0.0.1:1: no Ray answers" in line
    assert not (tmp_path / "set").exists()
    for address in ("127.0.0.1", "head:port"):
        with pytest.raises(RoboCacheError, match=f"address: {address}: not an address of Ray; give HOST:6379 or auto"):
            _check(address)


def test_a_target_that_is_taken_is_refused_before_ray_is_started(recordings, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "notes.txt").write_text("mine")
    with pytest.raises(RoboCacheError, match="set: exists; choose another folder"):
        export(recordings, sensor_spec(), tmp_path / "set", executor=RayTasks("127.0.0.1:1"))


def test_killed_workers_and_a_killed_driver_change_no_byte(ray_address, recordings, undisturbed, tmp_path):
    given = {"recordings": [str(recording) for recording in recordings], "spec": sensor_spec().to_dict()}
    given |= {"out": str(tmp_path / "set"), "address": ray_address, "moments": str(tmp_path / "moments")}
    (tmp_path / "moments").mkdir()
    for number, operation in enumerate((13, 14, 2, 9)):  # of the files of a recording, which has more than 20
        (tmp_path / "moments" / f"waiting-{number}").write_text(str(operation))
    for last, status in ((2, -signal.SIGKILL), (0, 0)):
        program = [sys.executable, Path(__file__).with_name("killed_fleet.py"), json.dumps({**given, "last": last})]
        assert subprocess.run(program, check=False, cwd=ROOT).returncode == status
    assert len(list((tmp_path / "moments").glob("taken-*"))) == 4
    assert contents(tmp_path / "set") == undisturbed


# Tasks that Ray runs: what is run again, and what is not.


def tasks(*names: str, needs: Resources = Resources(memory_bytes=GB)) -> list[Task]:  # noqa: B008
    return [Task(name, 1000 - number, needs) for number, name in enumerate(names)]


def run(executor: RayTasks, work: Callable[..., Any], given: list[Task]) -> dict[str, Any]:
    """The result of each task, by its name."""
    with executor:
        done = [(task.name, result) for task, result in executor.map(work, given, lambda _event: None)]
    assert len(dict(done)) == len(done)
    return dict(done)


def test_a_task_whose_process_is_killed_is_run_again_and_the_result_of_each_comes_once(ray_address, tmp_path):
    def work(task: Task, _tell: object) -> str:
        if task.name == "lift 7":
            attempts = len(list(tmp_path.iterdir()))
            (tmp_path / str(attempts)).touch()
            if attempts < 2:
                os.kill(os.getpid(), signal.SIGKILL)
        return task.name.upper()

    names = [f"lift {number}" for number in range(50)]
    assert run(RayTasks(), work, tasks(*names)) == {name: name.upper() for name in names}
    assert len(list(tmp_path.iterdir())) == 3


def test_an_error_is_of_its_task_only_and_is_not_repeated_and_one_of_the_target_ends_the_others(ray_address, tmp_path):
    errors = {"bad": ValueError("no such row"), "refused": RoboCacheError("refused: has no topic")}
    errors["full"] = OSError(28, "No space left on device", "/target")

    def work(task: Task, _tell: object) -> str:
        with (tmp_path / task.name).open("x"):  # which fails if it is repeated
            pass
        if task.name in errors:
            raise errors[task.name]
        return "done"

    found = run(RayTasks(), work, tasks("good", "bad", "refused", "another"))
    assert (found["good"], found["another"]) == ("done", "done")
    assert all(isinstance(found[name], RoboCacheError) for name in ("bad", "refused"))
    assert str(found["bad"]) == "bad: ValueError: no such row; the log of its Ray task has the traceback"
    assert str(found["refused"]) == "refused: has no topic"
    with pytest.raises(OSError, match="No space left on device: '/target'"):
        run(RayTasks(), work, tasks("full"))


def test_a_task_runs_with_the_resources_that_are_stated(ray_address):
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
def scripted(monkeypatch) -> Callable[..., tuple[RayTasks, ScriptedRay]]:
    def make(*script: Any, memory: int = 64 * GB) -> tuple[RayTasks, ScriptedRay]:
        module = ScriptedRay(*script, memory=memory)
        executor = RayTasks()
        executor._ray, executor._machines = module, Machines(module)
        monkeypatch.setattr(RayTasks, "__enter__", lambda executor: executor)
        return executor, module

    return make


DONE = executors.Finished("done")
OUT_OF_MEMORY = ray.exceptions.OutOfMemoryError("the node runs low on memory")
LOST = ray.exceptions.NodeDiedError("the node is gone")
CRASHED = ray.exceptions.WorkerCrashedError()


@pytest.mark.parametrize(
    ("script", "machine", "found", "memory"),
    [
        ([OUT_OF_MEMORY, DONE, DONE], 64 * GB, "done", 2 * GB),
        ([OUT_OF_MEMORY, DONE, DONE], 3 * GB // 2, "done", 3 * GB // 2),  # no more than the largest machine has
        ([OUT_OF_MEMORY, DONE, OUT_OF_MEMORY], 64 * GB, "lift: 2.0 GB of memory are not enough; state more", 2 * GB),
        ([LOST, DONE, *[LOST] * 99, DONE], 64 * GB, "done", GB),  # a lost machine costs no attempt
        ([CRASHED, DONE, *[CRASHED] * (executors.CRASHES - 1)], 64 * GB, "lift: its process ended 32 times", GB),
    ],
    ids=["memory", "largest machine", "not enough", "lost", "crashed"],
)
def test_a_task_that_is_lost_or_out_of_memory_is_run_again(scripted, script, machine, found, memory):
    executor, module = scripted(*script, memory=machine)  # the second attempt is of the other task
    results = run(executor, lambda *_: None, tasks("lift", "other"))
    assert str(results["lift"]).startswith(found)
    assert results["other"] == "done"
    assert len(module.requested) == len(script)
    assert module.requested[-1]["memory"] == memory


def test_twice_as_many_tasks_are_submitted_as_can_run(scripted):
    executor, module = scripted(*[DONE] * 20)
    assert len(run(executor, lambda *_: None, tasks(*map(str, range(20))))) == 20
    assert module.most_running == 4  # of two cores
