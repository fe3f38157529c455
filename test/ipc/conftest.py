"""Rings of shared memory, their frames, and processes at their other end."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from robocache_ros import ipc
from robocache_ros.ipc import shared_memory
from test import forked

MakeWriter = Callable[..., ipc.Writer]

PEER = Path(__file__).with_name("peer.py")
ROOT = Path(__file__).parents[2]
FIELDS = (ipc.Field("fused", "float32", (2, 3)), ipc.Field("age_ns", "int64", (2,), host=True))


def frame(value):
    """Values of FIELDS that show the number they were made of."""
    return {"fused": torch.full((2, 3), float(value)), "age_ns": np.full(2, 2**60 + value)}


class Peer:
    """A process of peer.py: `ask` it, or kill it."""

    def __init__(self, role, path, device, user, env):
        self.process = forked.Popen(
            [sys.executable, str(PEER), role, str(path), device, str(user)],
            preload=["robocache_ros.ipc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env},
        )
        self.hello = self._answer()

    def ask(self, *command):
        assert self.process.stdin
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()

    def _answer(self):
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the peer ended with code {self.process.wait()}"
        return json.loads(line)


@pytest.fixture(autouse=True)
def patient():
    """A writer on a busy machine may take longer to answer than a consumer waits for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_memory, "CONNECT_S", 120.0)
        yield


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(prefix="rc") as folder:  # short: a socket's path has 107 bytes
        yield Path(folder) / "node.sock"


@pytest.fixture
def spawn(path):
    """Starts processes of peer.py, and ends them."""
    peers = []

    def start(role, *, device="cpu", user=None, **env):
        peers.append(Peer(role, path, device, os.geteuid() if user is None else user, env))
        return peers[-1]

    yield start
    for peer in peers:
        peer.end()


@pytest.fixture
def eventually():
    """Waits for what another process or thread brings about; it fails where that never comes true."""

    def wait(condition):
        end = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < end, "it did not come about"
            time.sleep(0.005)

    return wait


@pytest.fixture(scope="session")
def peer_frames():
    """`FIELDS` and `values` of peer.py: the frames that its processes write and read."""
    return runpy.run_path(str(PEER))


@pytest.fixture
def make_writer(path):
    """Makes writers, and closes them."""
    writers = []

    def make(fields, **options):
        writers.append(ipc.Writer(path, fields, **options))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


@pytest.fixture
def writer(make_writer):
    """A ring of three slots for frames of FIELDS."""
    return make_writer(FIELDS, slots=3, meta="columns")


@pytest.fixture
def reader(writer, path):
    """A reader of `writer`, in the same process."""
    return ipc.Reader(path)
