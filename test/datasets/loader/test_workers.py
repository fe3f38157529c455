"""Worker processes: the same batches as without, also if workers die."""

from __future__ import annotations

import importlib
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from memory_episodes import Counting, KillsItsWorker, Surroundings, order_of

from robocache_ros.datasets import TimelineLoader
from robocache_ros.datasets.forked_processes import IMPORTED_ONCE
from robocache_ros.errors import RoboCacheError
from test import forked
from test.datasets.small import same

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}


def batches_without_workers(batch_size: int = 3) -> list:
    loader = TimelineLoader(Counting(), batch_size, shuffle=True, seed=7)
    return [*loader, *loader]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_same_batches_for_any_number_of_them(workers):
    loader = TimelineLoader(Counting(), 3, shuffle=True, seed=7, workers=workers)
    assert same([*loader, *loader], batches_without_workers())


def test_a_worker_that_is_killed_while_it_reads_is_replaced(tmp_path):
    dataset = KillsItsWorker(tmp_path, (2, 9))
    loader = TimelineLoader(dataset, 3, shuffle=True, seed=7, workers=2)
    assert same([*loader, *loader], batches_without_workers())
    assert loader.replaced_workers == 2


def test_workers_killed_between_epochs_are_replaced_and_read_the_next_one_again():
    loader = TimelineLoader(Counting(), 3, shuffle=True, seed=7, workers=2)
    found = list(loader)
    for pid in loader.worker_pids:
        os.kill(pid, signal.SIGKILL)
    assert same([*found, *loader], batches_without_workers())
    assert loader.replaced_workers == 2


def test_all_workers_killed_between_batches_are_replaced():
    loader = TimelineLoader(Counting(), 3, shuffle=True, seed=7, workers=2)
    found = []
    for batch in loader:
        found.append(batch)
        if len(found) == 2:
            for pid in loader.worker_pids:
                os.kill(pid, signal.SIGKILL)
    assert same(found, batches_without_workers()[: len(found)])
    assert len(found) == 5


def test_a_batch_that_kills_every_worker_is_an_error_that_names_it(tmp_path):
    loader = TimelineLoader(KillsItsWorker(tmp_path, (4,), times=3), 2, workers=1)
    with pytest.raises(RoboCacheError, match="samples 4, 5: 3 workers died"):
        list(loader)


def test_a_loader_may_be_closed_between_epochs_and_before_its_iterators():
    loader = TimelineLoader(Counting(), 3, workers=1)
    list(loader)
    unused, used = iter(loader), iter(loader)
    next(used)
    loader.close()
    del unused
    for closed in (used, loader):
        with pytest.raises(RoboCacheError, match="loader: it is closed; create another one"):
            list(closed)
    del used, closed  # an exception here would be a warning, which is an error


def test_leaving_an_epoch_reuses_the_workers_and_their_memory():
    loader = TimelineLoader(Counting(), 3, shuffle=True, seed=7, workers=1)
    next(iter(loader))
    pids = loader.worker_pids
    assert same(list(loader), batches_without_workers()[5:])
    assert loader.worker_pids == pids


def test_a_dataset_that_cannot_be_pickled_is_refused():
    dataset = Counting()
    dataset.nan = (lambda: None,)
    with pytest.raises(RoboCacheError, match="make it picklable, or use workers=0"):
        TimelineLoader(dataset, 3, workers=1)


def test_close_and_the_end_of_a_with_statement_end_the_workers():
    with TimelineLoader(Counting(), 3, workers=1) as loader:
        (pid,) = loader.worker_pids
    assert loader.worker_pids == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    loader.close()


FEW_DESCRIPTORS = """
import resource, sys
from pathlib import Path
from robocache_ros.datasets import TimelineLoader
from robocache_ros.programs import run
from memory_episodes import Counting

def main():
    loader = TimelineLoader(Counting(), 3, workers=int(sys.argv[1]))
    print(len(list(loader)))
    print(Path(f"/proc/{loader.worker_pids[0]}/status").read_text())

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    sys.exit(run("training", main))
"""


def in_a_process(tmp_path: Path, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A training."""
    script = tmp_path / "training.py"
    script.write_text(code)
    return forked.run([sys.executable, script, *arguments], env=ENVIRONMENT, capture_output=True, text=True)


def test_ctrl_c_does_not_reach_the_first_worker_of_a_process(tmp_path):
    done = in_a_process(tmp_path, FEW_DESCRIPTORS, 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "5"  # batches: few descriptors are enough
    (blocked,) = (line.split()[1] for line in done.stdout.splitlines() if line.startswith("SigBlk:"))
    assert int(blocked, 16) >> (signal.SIGINT - 1) & 1


@pytest.mark.slow
def test_too_few_descriptors_are_one_line(tmp_path):
    done = in_a_process(tmp_path, FEW_DESCRIPTORS, 8)
    assert done.returncode == 2
    assert re.fullmatch(
        r"training: workers: 8 workers and 18 batches take 72 file descriptors, \d\d of 40 are free; "
        r"raise `ulimit -n`, or use fewer workers\n",
        done.stderr,
    )


# Workers are forked by one process, which has imported what they need.


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_the_workers_of_all_loaders_are_forked_by_one_process():
    loaders = [TimelineLoader(Counting(), 3, workers=2) for _ in range(2)]
    parents = {parent_of(pid) for loader in loaders for pid in loader.worker_pids}
    assert len(parents) == 1
    assert os.getpid() not in parents


@pytest.mark.parametrize("module", IMPORTED_ONCE)
def test_a_module_that_is_imported_once_exists(module):
    importlib.import_module(module)  # the process that forks workers ignores one that does not


def test_a_worker_itself_needs_no_torch():
    python("import robocache_ros.datasets.loader.worker, sys; assert 'torch' not in sys.modules")


MAIN_MODULE = """
import os
from robocache_ros.datasets import TimelineLoader
from memory_episodes import Counting

os.write(1, b"imported\\n")  # at once: other processes write there too
{definition}
{guard}
    print(len(list(TimelineLoader(Dataset(), 3, workers=2))), flush=True)
"""


@pytest.mark.parametrize(
    ("definition", "guard", "imports"),
    [("Dataset = Counting", "if True:", 1), ("class Dataset(Counting): ...", 'if __name__ == "__main__":', 3)],
    ids=["nothing of it is sent to them", "the dataset is of it"],
)
def test_workers_import_the_main_module_where_they_need_it(tmp_path, definition, guard, imports):
    done = in_a_process(tmp_path, MAIN_MODULE.format(definition=definition, guard=guard))
    assert sorted(done.stdout.split()) == ["5", *["imported"] * imports], done.stderr


def test_workers_have_the_environment_of_their_loader(monkeypatch):
    found = []
    for value in ("1", "2"):
        monkeypatch.setenv("COUNTED", value)
        found += [batch["environment"] for batch in TimelineLoader(Surroundings(), 13, workers=1)]
    assert found == [["1"] * 13, ["2"] * 13]


def test_workers_have_different_random_numbers():
    first, second = TimelineLoader(Surroundings(), 7, workers=2)
    assert not set(first["random"].flatten().tolist()) & set(second["random"].flatten().tolist())


def test_a_loader_outlives_the_process_that_forked_its_workers():
    loader = TimelineLoader(Counting(), 13, workers=1)
    batches = iter(loader)
    forks = parent_of(loader.worker_pids[0])
    descriptor = os.pidfd_open(forks)
    os.kill(forks, signal.SIGKILL)
    select.select([descriptor], [], [], 60)
    os.close(descriptor)
    assert order_of(list(batches)) == order_of(list(TimelineLoader(Counting(), 13, workers=1)))
    loader.close()


@pytest.mark.slow
def test_a_process_that_was_forked_starts_workers_of_its_own():
    code = """if True:
        import os
        from memory_episodes import Counting, order_of
        from robocache_ros.datasets import TimelineLoader
        here = order_of(list(TimelineLoader(Counting(), 13, workers=1)))
        child = os.fork()
        if not child:
            os._exit(order_of(list(TimelineLoader(Counting(), 13, workers=1))) != here)
        print(os.waitpid(child, 0)[1])
    """
    assert python(code) == "0\n"
