"""A policy server of GR00T N1.6 and later: msgpack over ZeroMQ.

https://github.com/NVIDIA/Isaac-GR00T, gr00t/policy/server_client.py: one request, one answer. The server says which
streams it wants; it gets one observation, as (1, 1, ...) arrays.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.formats.lerobot.schema import ANNOTATION_COLUMN
from robocache_ros.policy.plan import MAX_HORIZON, Chunk, Prefix
from robocache_ros.policy.policies import RunnablePolicy, server
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.layout import Layout

PORT = 5555
MODALITIES = {"vector": "state", "image": "video"}  # of streams by kind


def encode(value: Any) -> Any:
    """Return an array as GR00T's MsgSerializer has it."""
    if isinstance(value, np.ndarray):
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": file.getvalue()}
    raise TypeError(f"{type(value).__name__} cannot be sent")


def decode(value: dict[Any, Any]) -> Any:
    """Return the array or the settings of a mapping, else the mapping; ValueError if it is damaged."""
    if "__ndarray_class__" in value:
        return _read_npy(value["as_npy"])
    return value["as_json"] if "__ModalityConfig_class__" in value else value


def _read_npy(data: bytes) -> NDArray[Any]:
    """Read a .npy file without allocating what its header claims."""
    form, file = np.lib.format, io.BytesIO(data)
    readers = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
    shape, is_fortran, dtype = readers[form.read_magic(file)](file)
    return server.array(dtype, shape, data[file.tell() :], is_fortran=is_fortran)


class Gr00tPolicy(RunnablePolicy):
    """Plans on a server; makes a new socket for the first plan, and after an error.

    Raises:
        RoboCacheError: a stream is neither a vector nor an image.
    """

    def __init__(self, text: str, spec: FusionSpec) -> None:
        self._host, self._port = server.read_address(text, PORT)
        self._where, self._spec, self._options = printable(text, 60), spec, server.options_of(spec)
        self._observation = server.Observation(spec, lambda stream: stream.name)
        for key, streams in self._observation.streams.items():
            if streams[0].kind not in MODALITIES or streams[0].rows:
                raise RoboCacheError(
                    f"run.observation.{printable(key, 60)}: GR00T takes vectors and images, not {streams[0].name}"
                )
        self._zmq = need("zmq", "policies")
        need("msgpack", "policies")
        self._context = self._zmq.Context()
        self._socket: Any = None
        self._wanted: dict[str, list[str]] = {}  # keys by modality
        self._first_step = 0  # ticks from an observation to the first row of its actions, as trained

    def plan(
        self, frame: FusedFrame, tick: int, prefix: Prefix | None = None, earlier: Sequence[FusedFrame] = ()
    ) -> Chunk:
        """Plan on the server; RoboCacheError if it does not answer in time, or not with actions."""
        try:
            if self._socket is None:
                self._connect()
            answer = self._ask("get_action", {"observation": self._observed(frame), "options": None})
        except self._zmq.ZMQError as error:
            self._drop()
            raise RoboCacheError(f"{self._where}: {printable(error, 90)}; check the address") from None
        except BaseException:
            self._drop()  # a socket without its answer takes no other request
            raise
        actions = answer[0] if isinstance(answer, list) and answer else answer
        if not isinstance(actions, dict):
            raise RoboCacheError(f"{self._where}: an answer of {server.shape_of(actions)}, not actions; is it GR00T?")
        keys = self._options.action_keys or [stream.name for stream in Layout(self._spec).vectors_of("action")]
        found = {  # of the one observation
            key: value[0] if isinstance(value, np.ndarray) and value.ndim == 3 and len(value) == 1 else value
            for key, value in actions.items()
        }
        return Chunk(tick + self._first_step, server.joined_actions(found, keys, self._spec, self._where))

    def close(self) -> None:
        """Close the socket."""
        self._drop()
        self._context.term()

    def _connect(self) -> None:
        zmq, timeout_ms = self._zmq, round(self._options.timeout_s * 1000)
        self._socket = self._context.socket(zmq.REQ)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDTIMEO, timeout_ms),
            (zmq.MAXMSGSIZE, server.MAX_ANSWER_BYTES),
            (zmq.RCVHWM, 1),
            (zmq.IPV6, 1),
        ):
            self._socket.setsockopt(option, value)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._socket.connect(f"tcp://{host}:{self._port}")
        settings = self._ask("get_modality_config")
        self._wanted, self._first_step = self._modalities(settings), self._first_step_of(settings)

    def _drop(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def _ask(self, endpoint: str, data: Any = None) -> Any:
        request = {"endpoint": endpoint} | ({"data": data} if data is not None else {})
        if key := server.api_key():
            request["api_token"] = key
        self._socket.send(server.pack(request, encode))
        if not self._socket.poll(round(self._options.timeout_s * 1000)):
            seconds = f"{self._options.timeout_s:g} s"
            raise RoboCacheError(f"{self._where}: no answer in {seconds}; check that the server runs")
        answer = server.unpack(self._socket.recv(), decode, self._where)
        if self._socket.getsockopt(self._zmq.RCVMORE):
            raise RoboCacheError(f"{self._where}: an answer of several parts; is it GR00T?")
        if isinstance(answer, dict) and "error" in answer:
            raise RoboCacheError(f"{self._where}: the server failed: {printable(answer['error'], 110)}")
        return answer

    def _modalities(self, settings: Any) -> dict[str, list[str]]:
        """Return the keys that the server wants by modality; empty if it does not say."""
        wanted: dict[str, list[str]] = {}
        for modality in ("video", "state", "language") if isinstance(settings, dict) else ():
            of = settings.get(modality)
            if isinstance(of, str):  # JSON
                raise RoboCacheError(f"{self._where}: a server of GR00T N1.5 or earlier; run one of N1.6 or later")
            if not isinstance(of, dict) or not isinstance(of.get("modality_keys"), list):
                continue
            wanted[modality] = [str(key) for key in of["modality_keys"]]
            steps = of.get("delta_indices")
            if isinstance(steps, list) and len(steps) != 1:
                raise RoboCacheError(
                    f"{self._where}: it wants {len(steps)} {modality} steps; train with delta_indices [0]"
                )
        has = self._keys()
        for modality in MODALITIES.values():
            absent = [key for key in wanted.get(modality, []) if key not in has[modality]]
            if absent:
                raise RoboCacheError(
                    f"{self._where}: no {modality} {printable(absent[0], 40)}; there is "
                    f"{printable(', '.join(has[modality]) or 'none', 50)}; set run.observation"
                )
        return wanted

    def _first_step_of(self, settings: Any) -> int:
        """Return the first of the steps of the actions, which must be consecutive; 0 if the server does not say."""
        of = settings.get("action") if isinstance(settings, dict) else None
        steps = of.get("delta_indices") if isinstance(of, dict) else None
        if not isinstance(steps, list) or not steps:
            return 0
        first = steps[0]
        if not isinstance(first, int) or abs(first) > MAX_HORIZON or steps != [*range(first, first + len(steps))]:
            raise RoboCacheError(f"{self._where}: its action steps are not consecutive; train with some that are")
        return first

    def _keys(self) -> dict[str, dict[str, str]]:
        """Return the keys of the option `observation` by modality and the server's key: `state.x` is `x` too."""
        found: dict[str, dict[str, str]] = {modality: {} for modality in MODALITIES.values()}
        for key, streams in self._observation.streams.items():
            modality = MODALITIES[streams[0].kind]
            found[modality][key.removeprefix(f"{modality}.")] = key
        return found

    def _observed(self, frame: FusedFrame) -> dict[str, Any]:
        observed: dict[str, Any] = {}
        for modality, keys in self._keys().items():
            wanted = self._wanted.get(modality, list(keys))
            observed[modality] = {name: self._observation.values(keys[name], frame)[None, None] for name in wanted}
        named = [self._options.task_key] if self._options.task_key else self._wanted.get("language")
        observed["language"] = {name: [[server.task_of(self._spec)]] for name in named or [ANNOTATION_COLUMN]}
        return observed
