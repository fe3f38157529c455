"""The socket of a ring: its path, who may connect, other ends that are not what they should be, and short resources."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import socket
import stat
import threading
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from robocache_ros import ipc
from robocache_ros.errors import RoboCacheError
from robocache_ros.ipc import ring, shared_memory, slots, socket_path
from test.ipc.conftest import publish
from test.ipc.peer import FIELDS
from test.nodes.rig import until

LAYOUT = ipc.RingLayout((ipc.Field("fused", "float32", (4,)),), 2, "cpu")
HELLO = b'{"generation": 1}'


def raw_socket():
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


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
        with raw_socket() as connection:
            connection.connect(os.fspath(path))
            data, fds, _, _ = socket.recv_fds(connection, 4096, 8)
        os.write(send, json.dumps([json.loads(data)["refused"], len(fds)]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(send)
    with open(receive, "rb") as answer:
        return json.loads(answer.read())


def test_consumers_beyond_the_limit_are_refused(writer, path, monkeypatch):
    monkeypatch.setattr(shared_memory, "MAX_READERS", 1)
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


@pytest.fixture
def serve(path):
    """Answers one reader with given bytes and descriptors."""
    threads = []

    def start(data, fds):
        listener = raw_socket()
        listener.bind(os.fspath(path))
        listener.listen()

        def answer():
            with listener, listener.accept()[0] as connection:
                socket.send_fds(connection, [data], fds)
                connection.recv(1)  # until the reader leaves
            for fd in fds:
                os.close(fd)

        threads.append(threading.Thread(target=answer, daemon=True))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(30)


def fds(layout, ring_bytes=LAYOUT.ring_bytes, page_bytes=4096):
    sizes = (slots.table_bytes(LAYOUT), ring_bytes, page_bytes)
    rest = [shared_memory.create("test", size) for size in sizes]
    return [shared_memory.text_fd("test", layout), shared_memory.text_fd("test", "{}"), *rest]


def test_honest_node_is_mapped(serve, path):
    serve(HELLO, fds(LAYOUT.to_json()))
    with ipc.Reader(path) as connected:
        assert connected.layout == LAYOUT


def refusal(path):
    """The one line with which a ring is refused."""
    with pytest.raises(ipc.IpcUnavailableError) as refused:
        ipc.Reader(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
    return str(refused.value)


def described(**changes):
    return json.dumps({**json.loads(LAYOUT.to_json()), **changes})


def of_field(shape=(1,), name="x", dtype="uint8"):
    return described(fields=[{"name": name, "dtype": dtype, "shape": shape}])


UNFIT = [
    (described(protocol=2), 512, "protocol: 2, this side speaks 1"),
    (LAYOUT.to_json(), 511, "511 bytes where the description gives 512"),
    (described(slots=1000), 512, "where the description gives"),
    ("no JSON", 512, "ring description: cannot be read"),
    (" " * (ring.MAX_DESCRIPTION_BYTES + 1), 512, "at most 16777216 are read"),
]
OUT_OF_BOUNDS = [
    *("[" * 100_000 + "]" * 100_000, "9" * 5000, "", "{}", '{"protocol": 1}', "[]", "null"),
    *(described(slots=slots) for slots in (1, 10**6, 2.5, True)),
    *(described(device="disk"), described(meta=7), described(fields=[]), described(fields=7)),
    *(of_field(shape) for shape in ([2**61], [2**40] * 40, [-1], [10**400])),
    *(of_field(name=[]), of_field(dtype="object")),
    described(fields=[{"name": str(n), "dtype": "uint8", "shape": [1]} for n in range(5000)]),
]


@pytest.mark.parametrize(
    ("layout", "ring_bytes", "message"), [*UNFIT, *((text, 512, "") for text in OUT_OF_BOUNDS)], ids=range(27)
)
def test_description_that_the_ring_does_not_fit_or_out_of_bounds_is_refused(serve, path, layout, ring_bytes, message):
    serve(HELLO, fds(layout, ring_bytes))
    assert message in refusal(path)


def test_description_that_is_not_text_is_refused():
    with pytest.raises(RoboCacheError, match="ring description"):
        ipc.RingLayout.from_json(b"\xff")


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        *((hello, "") for hello in (b"{}", b"\xff\xfe", b"[]", HELLO)),
        (json.dumps({"refused": "\x1b[31mno\n" + "x" * 3000}).encode(), "x1b"),
    ],
)
def test_greeting_without_descriptors_is_refused_in_one_line(serve, path, hello, words):
    serve(hello, [])
    assert words in refusal(path)


def test_refused_reader_leaves_no_descriptors(serve, path):
    serve(HELLO, fds("no JSON"))
    there = set(os.listdir("/proc/self/fd"))
    refusal(path)
    until(lambda: set(os.listdir("/proc/self/fd")) <= there)  # the serving thread has some until it ends


@pytest.mark.parametrize(
    ("numbers", "change"),
    [
        ((2,), lambda fd: shared_memory.map_fd(fd, 64, writable=True)),
        ((2, 3, 4), lambda fd: os.ftruncate(fd, 0)),
        ((0, 1), lambda fd: os.pwrite(fd, b"{}", 0)),
        (range(5), lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, shared_memory.SEAL_READERS)),
    ],
    ids=["write the table", "shrink the memory", "change the descriptions", "seal the ring against others"],
)
def test_reader_cannot_change_what_the_writer_gives_to_all(writer, path, numbers, change):
    # The descriptors of the description, the place of the ring, the slots, the ring and a page.
    connection, received, _ = shared_memory.connect(os.fspath(path))
    connection.close()
    for number in numbers:
        with pytest.raises(PermissionError):
            change(received[number])
    shared_memory.close_all(received)


def unsealed():
    fd = os.memfd_create("test")
    os.truncate(fd, 1 << 16)
    return fd


@pytest.mark.parametrize(
    ("number", "open_other"),
    [
        *((number, unsealed) for number in range(5)),  # memory that may shrink
        (1, lambda: os.open(__file__, os.O_RDONLY)),
        (2, lambda: os.open("/", os.O_RDONLY)),
        (3, lambda: os.eventfd(0)),
    ],
)
def test_descriptor_of_something_else_is_refused(serve, path, number, open_other):
    sent = fds(LAYOUT.to_json())
    os.close(sent[number])
    sent[number] = open_other()
    serve(HELLO, sent)
    assert "its size is not sealed" in refusal(path)


def test_node_that_does_not_answer_is_given_up(path, monkeypatch):
    monkeypatch.setattr(shared_memory, "CONNECT_S", 0.1)
    with raw_socket() as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        assert "no node answers there" in refusal(path)
