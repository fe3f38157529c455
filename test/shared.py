"""What a run of the tests makes once, whichever of its processes needs it first."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


def folder_of_run(factory: pytest.TempPathFactory) -> Path:
    """A temporary folder that is the same for every process of pytest-xdist."""
    base = factory.getbasetemp()
    shared = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "shared"
    shared.mkdir(exist_ok=True)
    return shared


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Exclude the other processes of the run."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """The result of `make`, which gets a folder of its own, and what it leaves there. Nobody may change either."""
    folder = folder_of_run(factory) / name
    with locked(folder.with_name(f"{name}.lock")):
        result = folder.with_name(f"{name}.pickle")
        if not result.exists():
            folder.mkdir(exist_ok=True)
            made = make(folder)
            result.write_bytes(pickle.dumps(made))
            return made
    loaded: T = pickle.loads(result.read_bytes())
    return loaded
