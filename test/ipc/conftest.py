"""Rings of shared memory, and processes at their other end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from robocache_ros import ipc
from robocache_ros.ipc import shared_memory
from test import forked
from test.ipc import peer

ROOT = Path(__file__).parents[2]


def publish(writer, ticks, device="cpu"):
    """Publish the frames of some ticks."""
    for tick in ticks:
        writer.publish(tick, peer.values(tick, device))


class Peer:
    """A process of peer.py: `ask` it, or kill it."""

    def __init__(self, role, path, device, user, env):
        command = [sys.executable, peer.__file__, role, str(path), device, str(user)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env}
        self.process = forked.Popen(command, preload=["robocache_ros.ipc"], env=env, **pipes)
        self.hello = self._answer()

    def tell(self, *command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def ask(self, *command):
        self.tell(*command)
        return self._answer()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()

    def _answer(self):
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
    for each in peers:
        each.end()


@pytest.fixture
def device(request):
    """Where the frames are: the CPU, where the test does not name another."""
    return getattr(request, "param", "cpu")


@pytest.fixture
def writer(path, device):
    """A ring of three slots for the frames of peer.py."""
    writer = ipc.Writer(path, peer.FIELDS, slots=3, device=device, meta="columns")
    yield writer
    writer.close()


@pytest.fixture
def reader(writer, path):
    """A reader of `writer`, in the same process."""
    return ipc.Reader(path)
