"""A ring where files, descriptors or memory are short: it is unavailable, and nothing else breaks."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import stat
from contextlib import closing

import pytest
import torch

from robocache_ros import ipc

FIELDS = (ipc.Field("fused", "float32", (2, 3)),)
FRAME = {"fused": torch.ones(2, 3)}


@contextlib.contextmanager
def descriptors_left(count):
    """Leaves this process so many file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open("/dev/null", "rb") as lowest:
        first_free = lowest.fileno()
    used = max(int(fd) for fd in os.listdir("/proc/self/fd")) + 1
    holes = [os.open("/dev/null", os.O_RDONLY) for _ in range(first_free, used)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(holes, default=used) + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in holes:
            os.close(fd)


def raw_connections(path, count):
    """Connections that wait to be accepted."""
    connections = []
    for _ in range(count):
        connections.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        connections[-1].connect(os.fspath(path))
    return connections


@pytest.mark.parametrize(
    "block",
    [
        lambda path: path.with_suffix(".lock").symlink_to(path.parent / "nowhere"),
        lambda path: path.with_suffix(".lock").mkdir(),
        lambda path: path.mkdir(),
    ],
    ids=["lock is a link", "lock is a folder", "socket is a folder"],
)
def test_blocked_path_makes_no_ring_and_leaves_no_descriptors(path, block):
    block(path)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ipc.IpcUnavailableError, match="cannot create a socket here"):
        ipc.Writer(path, FIELDS)
    assert set(os.listdir("/proc/self/fd")) <= before
    assert not (path.parent / "nowhere").exists()


@pytest.mark.parametrize("call", ["open", "memfd_create", "posix_fallocate"])
def test_full_disk_or_memory_makes_no_ring(path, monkeypatch, call):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(ipc.IpcUnavailableError, match="No space left on device"):
        ipc.Writer(path, FIELDS)


def test_ring_without_descriptors_is_unavailable(path):
    for count in range(12):
        with descriptors_left(count):
            try:
                ipc.Writer(path, FIELDS).close()
            except ipc.IpcUnavailableError:
                assert count < 11  # what a ring needs


def test_reader_without_descriptors_is_unavailable(make_writer, path):
    make_writer(FIELDS)
    with descriptors_left(0), pytest.raises(ipc.IpcUnavailableError):
        ipc.Reader(path)


def test_consumers_leave_the_node_descriptors(make_writer, path, eventually):
    writer = make_writer(FIELDS)
    with descriptors_left(40):
        connections = raw_connections(path, 16)
        eventually(lambda: writer.refused > 0)
        with open("/dev/null", "rb"):
            writer.publish(20, FRAME)
    for connection in connections:
        connection.close()


def test_server_without_descriptors_accepts_again_when_there_are_some(make_writer, path, eventually, caplog):
    writer = make_writer(FIELDS)
    waiting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with descriptors_left(0):
        waiting.connect(os.fspath(path))
        eventually(lambda: "no consumer can be accepted now" in caplog.text)
        writer.publish(20, FRAME)
    eventually(lambda: writer.readers == 1)
    waiting.close()
    with closing(ipc.Reader(path)):
        writer.publish(40, FRAME)
    assert caplog.text.count("no consumer can be accepted now") == 1


def test_reader_that_sends_something_is_sent_away(make_writer, path, eventually):
    writer = make_writer(FIELDS)
    (connection,) = raw_connections(path, 1)
    eventually(lambda: writer.readers == 1)
    with contextlib.suppress(BrokenPipeError):
        connection.send(b"hello")
    eventually(lambda: writer.readers == 0)
    connection.close()


def test_lock_file_is_only_for_the_user(make_writer, path):
    make_writer(FIELDS)
    assert stat.S_IMODE(path.with_suffix(".lock").stat().st_mode) == 0o600
