"""The program of a worker process: it reads batches into shared memory."""

from __future__ import annotations

import mmap
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets import forked_processes
from robocache_ros.datasets.loader.packing import Description
from robocache_ros.datasets.loader.reading import Loaded
from robocache_ros.errors import RoboCacheError, printable

NO_JOB = -1  # the number in the failure of a worker that cannot read any batch


class Place(NamedTuple):
    """The block that a worker writes a batch into."""

    slot: int
    generation: int
    nbytes: int


class Job(NamedTuple):
    """A batch to be read."""

    number: int
    samples: Sequence[Sequence[int]]  # the fields of each `Sample`
    epoch: int
    place: Place


class NewMemory(NamedTuple):
    """The memory of a slot; its descriptor follows in the same connection."""

    place: Place


class Grown(NamedTuple):
    """The block of a batch that did not fit is large enough now."""

    number: int
    place: Place


class TooSmall(NamedTuple):
    """A batch does not fit into its block."""

    number: int
    nbytes: int


class Done(NamedTuple):
    """A batch is in its block."""

    number: int
    description: Description


class Failed(NamedTuple):
    """A batch could not be read."""

    number: int
    reason: str


def run(connection: Connection, reader: bytes, environment: Mapping[str, str]) -> None:
    """Serve jobs until the loader closes the connection.

    Args:
        connection: to the loader.
        reader: the pickled `BatchReader`, with its dataset.
        environment: of the loader's process.
    """
    forked_processes.begin(environment)
    np.random.seed()  # noqa: NPY002 - of datasets that use it; workers are forked with one state
    try:
        try:
            loaded = pickle.loads(reader)
        except Exception as error:
            reason = printable(f"{type(error).__name__}: {error}", 100)
            connection.send(Failed(NO_JOB, f"dataset: a worker cannot load it ({reason}); use workers=0"))
            return
        if "torch" in sys.modules:  # else the dataset does not need it
            sys.modules["torch"].set_num_threads(1)
        _serve(connection, loaded)
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return  # the loader is closed


def _serve(connection: Connection, reader: Any) -> None:
    blocks: dict[int, tuple[int, NDArray[np.uint8]]] = {}
    waiting: dict[int, Loaded] = {}  # batches that do not fit into their blocks yet
    while True:
        message = connection.recv()
        if isinstance(message, NewMemory):
            blocks[message.place.slot] = (message.place.generation, _map(recv_handle(connection), message.place))
            continue
        try:
            grown = isinstance(message, Grown)
            loaded = waiting.pop(message.number) if grown else reader.load(message.samples, message.epoch)
            if loaded.description.nbytes > message.place.nbytes:
                waiting[message.number] = loaded
                answer: Any = TooSmall(message.number, loaded.description.nbytes)
            else:
                block = blocks[message.place.slot][1] if message.place.nbytes else np.empty(0, np.uint8)
                answer = Done(message.number, reader.write(loaded, block))
        except RoboCacheError as error:
            answer = Failed(message.number, str(error))
        except MemoryError as error:
            answer = Failed(message.number, f"batch: {printable(error)}; use a smaller batch_size")
        except Exception as error:  # of a dataset or of a library: another worker would fail too
            answer = Failed(message.number, f"batch: {printable(f'{type(error).__name__}: {error}', 150)}")
        connection.send(answer)


def _map(fd: int, place: Place) -> NDArray[np.uint8]:
    # All pages at once: to map each one when it is first written takes as long as reading a batch.
    try:
        return np.frombuffer(mmap.mmap(fd, place.nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE), np.uint8)
    finally:
        os.close(fd)
