"""The socket of a ring: its path, who may connect, and what happens where files, descriptors or memory are short."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import socket
import stat
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from robocache_ros import ipc
from robocache_ros.errors import RoboCacheError
from robocache_ros.ipc import socket_path
from test.ipc.conftest import publish
from test.ipc.peer import FIELDS
from test.nodes.rig import until


@pytest.fixture(autouse=True)
def runtime(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    return tmp_path


def test_socket_its_folder_and_its_lock_are_only_for_the_user(writer, path):
    assert stat.S_IMODE(socket_path("/fusion").parent.stat().st_mode) == 0o700
    for file in (path, path.with_suffix(".lock")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_without_a_runtime_folder_it_lies_under_the_temporary_one(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert socket_path("/fusion").parent == tmp_path / f"robocache-{os.geteuid()}"


def test_nodes_and_domains_have_sockets_of_their_own():
    paths = {socket_path("/a/fusion"), socket_path("/b/fusion"), socket_path("/a/fusion", domain=8)}
    assert len(paths) == 3
    assert socket_path("/a/fusion", domain=7) in paths  # that of the environment


def test_long_names_still_fit_a_socket(monkeypatch):
    with TemporaryDirectory(dir="/tmp") as short:  # pytest's own folder can be too long for any socket
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        paths = {socket_path("/" + "n" * 300 + suffix) for suffix in "ab"}
    assert len(paths) == 2
    assert max(len(os.fsencode(path)) for path in paths) <= 107


def _open_to_others(folder):
    folder.mkdir()
    folder.chmod(0o755)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_open_to_others, "is not a folder of only this user"),
        (Path.touch, "cannot be created"),
        (lambda folder: folder.symlink_to("elsewhere"), "is not a folder of only this user"),
        (lambda folder: folder.symlink_to("nowhere"), "cannot be created"),
    ],
    ids=["open to others", "file", "link", "dangling link"],
)
def test_what_is_not_a_folder_of_only_this_user_is_refused(runtime, make, message):
    (runtime / "elsewhere").mkdir(mode=0o700)
    make(runtime / "robocache")
    with pytest.raises(RoboCacheError, match=message):
        socket_path("/fusion")


OTHER_USER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")


@as_root
def test_another_user_cannot_open_the_socket(writer, spawn, path):
    path.parent.chmod(0o755)
    assert "Permission denied" in spawn("reader", user=OTHER_USER).hello["refused"]


@as_root
def test_another_user_is_refused_even_where_the_socket_lets_him_in(writer, path):
    path.parent.chmod(0o755)
    path.chmod(0o666)
    assert raw_hello(path, OTHER_USER) == [f"user {OTHER_USER} is not the node's user 0", 0]
    assert (writer.refused, writer.readers) == (1, 0)


@as_root
def test_node_of_another_user_is_not_trusted(spawn, path):
    path.parent.chmod(0o777)
    spawn("writer", user=OTHER_USER)
    with pytest.raises(ipc.IpcUnavailableError, match=f"served by user {OTHER_USER}"):
        ipc.Reader(path)


def raw_hello(path, user):
    """The node's refusal of a process of another user that skips the reader's checks, and the descriptors with it."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.setgid(user)
        os.setuid(user)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(os.fspath(path))
            data, fds, _, _ = socket.recv_fds(connection, 4096, 8)
        os.write(send, json.dumps([json.loads(data)["refused"], len(fds)]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(send)
    with open(receive, "rb") as answer:
        return json.loads(answer.read())


def test_consumers_beyond_the_limit_are_refused(writer, path, monkeypatch):
    monkeypatch.setattr("robocache_ros.ipc.shared_memory.MAX_READERS", 1)
    first = ipc.Reader(path)
    with pytest.raises(ipc.IpcUnavailableError, match="1 consumers are connected already"):
        ipc.Reader(path)
    assert first.alive


def test_descriptors_do_not_pile_up(writer, path):
    def come_and_go():
        for _ in range(20):
            ipc.Reader(path).close()
        until(lambda: writer.readers == 0)
        return len(os.listdir("/proc/self/fd"))

    before = come_and_go()
    until(lambda: come_and_go() <= before)  # the server may close a connection after the reader is counted


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


def raw_socket():
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


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

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(ipc.IpcUnavailableError, match="No space left on device"):
            ipc.Writer(path, FIELDS)


def test_ring_without_descriptors_is_unavailable(path):
    for count in range(12):
        with descriptors_left(count):
            try:
                ipc.Writer(path, FIELDS).close()
            except ipc.IpcUnavailableError:
                assert count < 11  # what a ring needs


def test_reader_without_descriptors_is_unavailable(writer, path):
    with descriptors_left(0), pytest.raises(ipc.IpcUnavailableError):
        ipc.Reader(path)


def test_consumers_leave_the_node_descriptors(writer, path):
    with descriptors_left(40), contextlib.ExitStack() as connections:
        for _ in range(16):
            connections.enter_context(raw_socket()).connect(os.fspath(path))
        until(lambda: writer.refused > 0)
        with open("/dev/null", "rb"):
            publish(writer, [20])


def test_server_without_descriptors_accepts_again_when_there_are_some(writer, path, caplog):
    with raw_socket() as waiting:
        with descriptors_left(0):
            waiting.connect(os.fspath(path))
            until(lambda: "no consumer can be accepted now" in caplog.text)
            publish(writer, [20])
        until(lambda: writer.readers == 1)
    with closing(ipc.Reader(path)):
        publish(writer, [40])
    assert caplog.text.count("no consumer can be accepted now") == 1


def test_reader_that_sends_something_is_sent_away(writer, path):
    with raw_socket() as connection:
        connection.connect(os.fspath(path))
        until(lambda: writer.readers == 1)
        with contextlib.suppress(BrokenPipeError):
            connection.send(b"hello")
        until(lambda: writer.readers == 0)
