"""Executors: what runs the independent tasks of an export."""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.file_errors import error_number
from robocache_ros.exporter.progress import Event, Progress
from robocache_ros.storage.cache import release_all

# By default, glibc raises the thresholds to the size of freed blocks, up to 32 MB. Large messages, clouds and images
# are then allocated on the heap between small long-lived objects, and the gaps cannot be returned. With lower
# thresholds than these, the memory of each frame for an encoder is mapped anew, whose page faults take a tenth of the
# time of an export.
_MALLOPT = {"MALLOC_TRIM_THRESHOLD_": (-1, 16 << 20), "MALLOC_MMAP_THRESHOLD_": (-3, 4 << 20)}


def return_freed_memory() -> None:
    """Set the malloc thresholds of this process, unless the environment sets them. No effect with another libc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    for variable, (option, nbytes) in _MALLOPT.items():
        if variable not in os.environ:
            mallopt(option, nbytes)


@dataclass(frozen=True)
class Resources:
    """What a task needs while it runs.

    Attributes:
        cpus, gpus: cores and GPUs; a share, such as 0.25, where several tasks use one.
        memory_bytes: of main memory; 0: not known.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True)
class Task:
    """A part of an export that depends on no other task. Subclasses name what is to be done; all of it is small.

    Attributes:
        name: of the recording or the file, for people; not unique.
        size: bytes that it reads. Larger tasks are started first.
        needs: resources; an executor may use others.
        is_long: whether it may take longer than the start of a process.
    """

    is_long: ClassVar[bool] = True
    name: str
    size: int
    needs: Resources


TaskT = TypeVar("TaskT", bound=Task)
ResultT = TypeVar("ResultT")


class Executor(Protocol):
    """Runs tasks; a context manager, which releases what it has started.

    Attributes:
        remote: whether tasks run on other machines, which may be many: the files of a task are opened there only.
    """

    @property
    def remote(self) -> bool: ...  # noqa: D102

    def parallel(self, tasks: Sequence[Task]) -> int:
        """Return how many of these tasks run at the same time."""

    def map(
        self, work: Callable[[TaskT, Progress], ResultT], tasks: Sequence[TaskT], progress: Progress
    ) -> Generator[tuple[TaskT, ResultT | RoboCacheError], None, None]:
        """Run `work(task, progress)` for each task, in this process or in others; yield tasks as they finish.

        Closing the generator ends the tasks that are not done.

        Args:
            work: pickled for other processes, as its results are, which are small. It may be run again for a task that
                was lost, so that two runs of a task may overlap and each must do no harm.
            tasks: in any order.
            progress: called in this process, by one thread at a time, with the events of `work`. An executor of other
                machines leaves out `Advanced`.

        Yields:
            Each task with its result, or with an error of a task that the executor gives up.

        Errors:
            Whatever `work` raises, unless the executor yields it; RoboCacheError: tasks cannot be run. The other tasks
            are ended.
        """

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...


class Finished(NamedTuple):
    """What a task has returned in another process, and its events that were not sent while it ran."""

    result: Any
    events: tuple[Event, ...] = ()


def finished(work: Callable[[TaskT, Progress], Any], task: TaskT, progress: Progress) -> Finished | Exception:
    """Run a task; return its result, or its error as one that can be pickled, with the traceback if it is a defect."""
    try:
        return Finished(work(task, progress))
    except OSError as error:  # an error of the target; PyAV's subclasses cannot be pickled
        number = error_number(error)
        return OSError(number, os.strerror(number), error.filename) if number else OSError(str(error))
    except RoboCacheError as error:
        return error
    except Exception:
        return RuntimeError(f"{task.name}:\n{traceback.format_exc()}")
    finally:
        release_all()  # so that the process of the export can remove what was downloaded
