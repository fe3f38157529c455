"""The socket of a ring: its path, and who may connect."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from robocache_ros import ipc
from robocache_ros.errors import RoboCacheError
from robocache_ros.ipc import socket_path


@pytest.fixture(autouse=True)
def runtime(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    return tmp_path


def test_folder_is_only_for_the_user(runtime):
    assert socket_path("/fusion").parent.stat().st_mode & 0o777 == 0o700


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


@pytest.fixture
def writer(make_writer, peer_frames):
    return make_writer(peer_frames["FIELDS"], slots=3)


def test_socket_is_only_for_the_user(writer, path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@as_root
def test_another_user_cannot_open_the_socket(writer, spawn, path):
    path.parent.chmod(0o755)
    assert "Permission denied" in spawn("reader", user=OTHER_USER).hello["refused"]


@as_root
def test_another_user_is_refused_even_where_the_socket_lets_him_in(writer, spawn, path):
    path.parent.chmod(0o755)
    path.chmod(0o666)
    assert f"user {OTHER_USER} is not the node's user 0" in raw_hello(path, OTHER_USER)
    assert writer.refused == 1
    assert writer.readers == 0


@as_root
def test_node_of_another_user_is_not_trusted(spawn, path):
    path.parent.chmod(0o777)
    spawn("writer", user=OTHER_USER)
    with pytest.raises(ipc.IpcUnavailableError, match=f"served by user {OTHER_USER}"):
        ipc.Reader(path)


def raw_hello(path, user):
    """The node's answer to a process of another user that skips the reader's checks."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.setgid(user)
        os.setuid(user)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(os.fspath(path))
            data, fds, _, _ = socket.recv_fds(connection, 4096, 8)
        os.write(send, json.dumps([data.decode(), len(fds)]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(send)
    with open(receive, "rb") as answer:
        text, fds = json.loads(answer.read())
    assert fds == 0
    return text


def test_consumers_beyond_the_limit_are_refused(writer, path, monkeypatch):
    monkeypatch.setattr("robocache_ros.ipc.shared_memory.MAX_READERS", 1)
    first = ipc.Reader(path)
    with pytest.raises(ipc.IpcUnavailableError, match="1 consumers are connected already"):
        ipc.Reader(path)
    assert first.alive


def test_descriptors_do_not_pile_up(writer, path, eventually):
    def come_and_go():
        for _ in range(20):
            ipc.Reader(path).close()
        eventually(lambda: writer.readers == 0)
        return len(os.listdir("/proc/self/fd"))

    before = come_and_go()
    eventually(lambda: come_and_go() <= before)  # the server may close a connection after the reader is counted
