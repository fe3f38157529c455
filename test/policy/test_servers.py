"""Policies on servers: what is sent, what is read of an answer, and servers that fail, lie or disappear.

`test/export/readers/test_policies.py` has the serializers of openpi itself.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
import websockets.exceptions
import websockets.server
import websockets.sync.server
import zmq

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError
from robocache_ros.policy.plan import Chunk
from robocache_ros.policy.policies import RunnablePolicy, check_policy, open_policy
from robocache_ros.policy.worker import ProcessWorker
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.layout import Layout
from test.nodes.rig import until

VOXELS = {"origin_m": [0, 0, 0], "size_m": 0.1, "shape": [2, 2, 2]}
STREAMS: dict[str, Any] = {
    "joints": {"topic": "/joints", "type": "sensor_msgs/msg/JointState", "names": ["a", "b", "c"]},
    "gripper": {"topic": "/gripper", "type": "std_msgs/msg/Float32MultiArray", "dim": 1},
    "front": {"topic": "/front", "type": "sensor_msgs/msg/Image", "image": {"size": [4, 6]}},
    "points": {"topic": "/points", "type": "sensor_msgs/msg/PointCloud2", "voxels": VOXELS},
    "arm": {"topic": "/arm", "type": "std_msgs/msg/Float64MultiArray", "dim": 3, "align": "hold", "role": "action"},
    "hand": {"topic": "/hand", "type": "std_msgs/msg/Float64MultiArray", "dim": 1, "align": "hold", "role": "action"},
}
IMAGE = torch.arange(3 * 4 * 6, dtype=torch.uint8).view(3, 4, 6)


def spec(**run: Any) -> FusionSpec:
    return load_spec({"robocache": 1, "streams": STREAMS, "run": {"task": "lift the cube", "timeout_s": 20, **run}})


def frame(image: torch.Tensor = IMAGE) -> FusedFrame:
    vectors = {"joints": torch.tensor([[9, 9, 9], [0.25, 0.5, 1]]), "gripper": torch.tensor([[9], [2.0]])}
    tensors = {**vectors, "front": image, "points": torch.zeros(2, 2, 2)}
    return FusedFrame(40_000_000, torch.tensor([20_000_000, 40_000_000]), tensors, {}, {}, {}, Layout(spec()))


def rows(count: int = 5, width: int = 4) -> np.ndarray:
    return np.arange(count * width, dtype=np.float64).reshape(count, width)


def openpi_array(value: np.ndarray) -> dict[bytes, Any]:
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": list(value.shape)}


def gr00t_array(value: np.ndarray) -> dict[str, Any]:
    file = io.BytesIO()
    np.save(file, value)
    return {"__ndarray_class__": True, "as_npy": file.getvalue()}


def readable(value: Any) -> Any:
    """A request with its arrays as such."""
    if isinstance(value, list):
        return [readable(each) for each in value]
    if not isinstance(value, dict):
        return value
    if b"__ndarray__" in value:
        return np.frombuffer(value[b"data"], value[b"dtype"]).reshape(value[b"shape"])
    if "__ndarray_class__" in value:
        return np.load(io.BytesIO(value["as_npy"]))
    return {key: readable(each) for key, each in value.items()}


class Server:
    """A server of each kind, which answers with what `answer` returns: bytes or text, None for nothing."""

    def __init__(self, kind: str, port: int = 0) -> None:
        self.kind, self.requests, self.headers = kind, list[Any](), list[Any]()
        self.answer: Callable[[Any], bytes | str | None] = lambda _request: self.actions(rows())
        self.settings: Any = {}  # of GR00T: what it wants
        self._ended, self._connections = threading.Event(), list[Any]()
        if kind == "openpi":
            self._server = websockets.sync.server.serve(self._converse, "127.0.0.1", port, compression=None)
            self.port = self._server.socket.getsockname()[1]
        else:
            self._context = zmq.Context()
            self._socket = self._context.socket(zmq.ROUTER)  # as REP, which must answer
            self._socket.bind(f"tcp://127.0.0.1:{port or '*'}")
            self.port = int(self._socket.getsockopt(zmq.LAST_ENDPOINT).rpartition(b":")[2])
        serve = self._server.serve_forever if kind == "openpi" else self._reply
        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self.kind}://127.0.0.1:{self.port}"

    def actions(self, values: np.ndarray) -> bytes:
        """The answer with actions."""
        if self.kind == "openpi":
            return msgpack.packb({"actions": openpi_array(values), "server_timing": {"infer_ms": 1.5}})
        return msgpack.packb([{"hand": gr00t_array(values[None, :, 3:]), "arm": gr00t_array(values[None, :, :3])}, {}])

    def close(self) -> None:
        if self.kind == "openpi" and not self._ended.is_set():
            self._server.shutdown()
            for connection in self._connections:  # old versions leave them open
                connection.close()
        self._ended.set()
        self._thread.join()

    def _converse(self, connection: Any) -> None:
        self.headers.append(connection.request.headers)
        self._connections.append(connection)
        with contextlib.suppress(websockets.exceptions.ConnectionClosed):
            connection.send(msgpack.packb({"robot": "panda"}))
            while True:
                self.requests.append(readable(msgpack.unpackb(connection.recv())))
                if (answer := self.answer(self.requests[-1])) is not None:
                    connection.send(answer)

    def _reply(self) -> None:
        while not self._ended.is_set():
            if not self._socket.poll(20):
                continue
            *peer, data = self._socket.recv_multipart()
            request = readable(msgpack.unpackb(data))
            answer: Any = msgpack.packb(self.settings)
            if request["endpoint"] == "get_action":
                self.requests.append(request)
                answer = self.answer(request)
            if answer is not None:
                answer = answer if isinstance(answer, bytes) else msgpack.packb({"error": answer})
                self._socket.send_multipart([*peer, answer])
        self._socket.close(0)
        self._context.term()


@pytest.fixture
def start():
    """Starts servers that end with the test."""
    with contextlib.ExitStack() as started:
        yield lambda *given: started.enter_context(contextlib.closing(Server(*given)))


def only(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", [kind], indirect=True)


@pytest.fixture(params=("openpi", "gr00t"))
def server(request, start):
    return start(request.param)


def opened(url: str, **run: Any) -> AbstractContextManager[RunnablePolicy]:
    return contextlib.closing(open_policy(url, spec(**run)))


def plan(policy: RunnablePolicy, tick: int) -> Chunk:
    """A plan of a server whose timeout is short, which a busy machine may exceed."""
    for _ in range(40):
        with contextlib.suppress(RoboCacheError):
            return policy.plan(frame(), tick)
    return policy.plan(frame(), tick)


def test_a_plan_is_the_rows_of_the_answer(server):
    with opened(server.url) as policy:
        for tick in (7, 9):
            chunk = policy.plan(frame(), tick)
            assert (chunk.tick, chunk.actions.dtype, chunk.actions.tolist()) == (tick, np.float32, rows().tolist())
    assert len(server.requests) == 2


@only("openpi")
def test_openpi_gets_every_vector_and_image_and_the_prompt(server):
    with opened(server.url) as policy:
        for image in (IMAGE, IMAGE[:1]):
            policy.plan(frame(image), 7)
    request, of_grey = server.requests
    assert set(request) == {"observation/joints", "observation/gripper", "observation/front", "prompt"}
    assert request["prompt"] == "lift the cube"
    joints, image = request["observation/joints"], request["observation/front"]
    assert (joints.dtype, joints.tolist()) == (np.float32, [0.25, 0.5, 1])
    assert (image.dtype, image.tolist()) == (np.uint8, IMAGE.permute(1, 2, 0).tolist())
    # It has three channels, as in a dataset.
    assert of_grey["observation/front"].tolist() == IMAGE[[0, 0, 0]].permute(1, 2, 0).tolist()


@only("openpi")
def test_openpi_gets_the_keys_of_the_spec(server):
    answer = {"right": openpi_array(rows()[:, 3:]), "left": openpi_array(rows()[:, :3]), "actions": 0}
    server.answer = lambda _request: msgpack.packb(answer)
    mapping = {"observation/state": ["joints", "gripper"], "grid": "points"}
    with opened(server.url, observation=mapping, task_key="text", action_keys=["left", "right"]) as policy:
        assert policy.plan(frame(), 7).actions.tolist() == rows().tolist()
    (request,) = server.requests
    assert set(request) == {"observation/state", "grid", "text"}
    assert request["observation/state"].tolist() == [0.25, 0.5, 1, 2]
    assert request["grid"].shape == (2, 2, 2)


@only("gr00t")
def test_gr00t_gets_what_it_asks_for_with_two_leading_dimensions_or_else_everything(server):
    def settings(*keys: str) -> dict[str, Any]:
        return {"__ModalityConfig_class__": True, "as_json": {"modality_keys": list(keys), "delta_indices": [0]}}

    wanted = {"video": settings("front"), "state": settings("joints"), "language": settings("said", "meant")}
    for server.settings in ({}, wanted):
        with opened(server.url) as policy:
            policy.plan(frame(), 7)
    anything, data = (request["data"] for request in server.requests)
    assert set(anything["observation"]["state"]) == {"joints", "gripper"}
    assert set(anything["observation"]["language"]) == {"annotation.human.action.task_description"}
    assert data["options"] is None
    observation = data["observation"]
    keys = {"video": {"front"}, "state": {"joints"}, "language": {"said", "meant"}}
    assert {modality: set(values) for modality, values in observation.items()} == keys
    assert (observation["video"]["front"].shape, observation["video"]["front"].dtype) == ((1, 1, 4, 6, 3), np.uint8)
    assert observation["state"]["joints"].tolist() == [[[0.25, 0.5, 1]]]
    assert observation["language"]["said"] == [["lift the cube"]]


@only("gr00t")
def test_gr00t_gets_the_keys_of_the_spec(server):
    mapping = {"state.q": ["joints", "gripper"], "video.ego": "front"}
    answer = {"q": gr00t_array(rows()[None, :, :3]), "g": gr00t_array(np.asfortranarray(rows()[None, :, 3:]))}
    server.answer = lambda _request: msgpack.packb([answer, {}])
    with opened(server.url, observation=mapping, task_key="say", action_keys=["q", "g"]) as policy:
        assert policy.plan(frame(), 7).actions.tolist() == rows().tolist()
    observation = server.requests[0]["data"]["observation"]
    assert observation["state"]["q"].tolist() == [[[0.25, 0.5, 1, 2]]]
    assert set(observation["video"]) == {"ego"}
    assert observation["language"] == {"say": [["lift the cube"]]}


OLD = {"__ModalityConfig_class__": True, "as_json": '{"modality_keys":["state.arm"]}'}


@only("gr00t")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"state": {"modality_keys": ["arm_q"], "delta_indices": [0]}}, "no state arm_q; there is joints, gripper"),
        ({"video": {"modality_keys": ["front"], "delta_indices": [-8, 0]}}, "2 video steps; train with"),
        ({"action": {"modality_keys": ["arm"], "delta_indices": [0, 2, 4]}}, "action steps are not consecutive"),
        ({"state": OLD}, "N1.5 or earlier; run one of N1.6 or later"),
    ],
)
def test_gr00t_that_asks_for_what_there_is_not_is_refused_with_names(server, settings, words):
    server.settings = settings
    with opened(server.url) as policy, pytest.raises(RoboCacheError, match=words):
        policy.plan(frame(), 7)


@only("gr00t")
def test_the_rows_of_gr00t_begin_at_the_first_of_its_action_steps(server):
    server.settings = {"action": {"modality_keys": ["arm", "hand"], "delta_indices": [2, 3, 4, 5, 6]}}
    with opened(server.url) as policy:
        assert policy.plan(frame(), 7).tick == 9


def test_the_key_of_the_server_comes_from_the_environment(server, monkeypatch):
    monkeypatch.setenv("ROBOCACHE_POLICY_KEY", "secret")
    with opened(server.url) as policy:
        policy.plan(frame(), 7)
    if server.kind == "openpi":
        assert server.headers[0]["Authorization"] == "Api-Key secret"
    else:
        assert server.requests[0]["api_token"] == "secret"


def test_a_server_that_does_not_answer_is_an_error_and_then_asked_again(server):
    with opened(server.url, timeout_s=0.3) as policy:
        good, server.answer = server.answer, lambda _request: None
        with pytest.raises(RoboCacheError, match=r"no answer in 0\.3 s; check that the server runs"):
            policy.plan(frame(), 7)
        server.answer = good
        assert len(plan(policy, 8).actions) == 5


def test_a_server_that_ends_and_comes_back_is_used_again(server, start):
    with opened(server.url, timeout_s=0.3) as policy:
        plan(policy, 7)
        server.close()
        for tick in (8, 9):
            with pytest.raises(RoboCacheError, match="check that the server runs"):
                policy.plan(frame(), tick)
        start(server.kind, server.port)
        assert plan(policy, 10).tick == 10


@pytest.mark.usefixtures("forked_policies")
def test_the_process_of_a_policy_outlives_its_server(start):
    server = start("openpi")

    def reply(tick: int) -> Any:
        until(lambda: worker.poll() or not worker.busy, "the policy to be open")
        worker.submit(frame(), tick)
        return until(worker.poll, "an answer")[0]

    with contextlib.closing(ProcessWorker(server.url, spec())) as worker:
        assert reply(7).chunk is not None
        server.close()
        failed = reply(8)
        assert (failed.tick, failed.chunk) == (8, None)
        assert "check that the server runs" in failed.error
        start(server.kind, server.port)
        assert reply(9).chunk is not None


def answers(kind: str) -> dict[str, tuple[Any, str]]:
    """Answers of which no chunk is made, and the words of the errors."""
    array = openpi_array if kind == "openpi" else gr00t_array

    def actions(**parts: Any) -> bytes:
        return msgpack.packb(parts if kind == "openpi" else [parts, {}])

    def one(value: np.ndarray) -> bytes:
        return actions(actions=array(value)) if kind == "openpi" else actions(arm=array(value), hand=array(value))

    def damaged(**parts: Any) -> bytes:  # of an array of openpi
        return actions(actions=openpi_array(rows()) | {key.encode(): value for key, value in parts.items()})

    def replaced(old: bytes, new: bytes) -> bytes:  # in an array of GR00T
        return actions(arm={"__ndarray_class__": 1, "as_npy": gr00t_array(rows())["as_npy"].replace(old, new)})

    of_kind = {
        "openpi": {
            "objects": (damaged(dtype="|O"), "dtype .* is not one of numbers"),
            "claims": (damaged(shape=[1 << 40, 4]), "cannot be read"),
            "no map": (msgpack.packb([1]), "an answer of list, not a map"),
        },
        "gr00t": {
            "objects": (replaced(b"'<f8'", b"'|O' "), "one of numbers"),
            "claims": (replaced(b"(5, 4)", b"(9, 9)"), "cannot be read"),
            "no map": (msgpack.packb(3), "an answer of int, not actions"),
        },
    }[kind]
    failure = 'Traceback\n  File "x"\nValueError: no \x1b[31mcamera\n'
    return of_kind | {
        "a failure": (failure, "the server failed: .*ValueError: no .*camera"),
        "garbage": (b"\xc1garbage", "cannot be read"),
        "deep": (b"\x91" * 100_000, "cannot be read"),
        "nothing": (actions(), "no .H, D. .* in nothing; set run.action_keys"),
        "other keys": (actions(other=array(rows())), r"no .H, D. .* in other .*; set run.action_keys"),
        "too wide": (one(rows(5, 9)), r"actions of .*5, 9.*, but the spec has \(H, 4\)"),
        "no rows": (one(np.zeros((0, 4))), "actions of"),
        "flat": (one(np.zeros(4)), "no .H, D."),
        "text": (actions(actions="up", arm="up"), "no .H, D."),
    }


@pytest.mark.parametrize("case", answers("openpi"))
def test_an_answer_that_is_not_actions_is_an_error_and_the_next_one_is_read(server, case):
    bad, words = answers(server.kind)[case]
    with opened(server.url) as policy:
        good, server.answer = server.answer, lambda _request: bad
        with pytest.raises(RoboCacheError, match=words) as caught:
            policy.plan(frame(), 7)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 200
        server.answer = good
        assert len(policy.plan(frame(), 8).actions) == 5


def test_an_answer_above_the_limit_is_not_read(server):
    large = server.actions(np.zeros((400_000, 4)))
    server.answer = lambda _request: large
    with opened(server.url, timeout_s=0.5) as policy, pytest.raises(RoboCacheError, match=server.url):
        policy.plan(frame(), 7)


def test_a_server_that_reads_nothing_does_not_block_for_ever():
    ended = threading.Event()

    def deaf() -> None:
        connection, _ = listening.accept()
        with connection:
            protocol = websockets.server.ServerProtocol()
            while not (events := protocol.events_received()):
                protocol.receive_data(connection.recv(4096))
            protocol.send_response(protocol.accept(events[0]))
            protocol.send_binary(msgpack.packb({}))
            connection.sendall(b"".join(protocol.data_to_send()))
            ended.wait()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        thread = threading.Thread(target=deaf, daemon=True)
        thread.start()
        large = frame(torch.zeros(3, 2000, 2000, dtype=torch.uint8))
        url = f"openpi://127.0.0.1:{listening.getsockname()[1]}"
        with opened(url, timeout_s=0.5) as policy, pytest.raises(RoboCacheError, match="check that the server runs"):
            policy.plan(large, 7)
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("address", "run", "words"),
    [
        ("openpi://", {}, "is not an address; write openpi://HOST:8000"),
        ("gr00t://host:1/path", {}, "is not an address; write gr00t://HOST:5555"),
        ("gr00t://host:70000", {}, "is not an address"),
        ("openpi://me@host", {}, "is not an address"),
        ("ws://host:8000", {}, "no such kind of server; use openpi://HOST:PORT or gr00t://HOST:PORT"),
        ("gr00t://host", {"observation": {"grid": "points"}}, "GR00T takes vectors and images, not points"),
        (
            "openpi://host",
            {"observation": {"x": ["joints", "front"]}},
            "front is not a vector; give it a key of its own",
        ),
        ("openpi://host", {"prefix": 3}, "takes no prefix; remove the option"),
    ],
)
def test_an_address_or_options_that_a_server_cannot_have_are_refused_at_the_start(address, run, words):
    with pytest.raises(RoboCacheError, match=words):
        check_policy(address, spec(**run))


@pytest.mark.parametrize("given", ["arm", "absent", ["joints", "absent"]])
def test_a_stream_that_is_not_observed_is_refused_in_the_spec(given):
    with pytest.raises(RoboCacheError, match=r"run\.observation\.key: .* is not a stream with role: observation"):
        spec(observation={"key": given})


def test_the_keys_of_a_server_are_written_and_read_back():
    found = spec(observation={"a/b.c": "joints", "d": ["joints", "gripper"]}, action_keys=["x"], task_key="t")
    assert load_spec(found.to_dict()) == found
