"""What a run of the tests makes once, whichever of its processes needs it first; servers, and packages of others."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
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


class FolderRequests(SimpleHTTPRequestHandler):
    """Answers requests for the files of a folder, without a log."""

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def served(folder: Path, handler: type[FolderRequests] = FolderRequests) -> Iterator[str]:
    """The URL of a folder on a server of this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def installed(site: Path, module: Path, entry_points: str) -> Path:
    """A folder with a package as pip installs it: a module, and the entry points that it declares."""
    declared = site / f"{module.stem}-1.0.dist-info"
    declared.mkdir(parents=True)
    name = module.stem.replace("_", "-")
    (declared / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (declared / "entry_points.txt").write_text(entry_points)
    shutil.copy(module, site)
    return site


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
