"""A policy server of openpi: msgpack over a websocket.

https://github.com/Physical-Intelligence/openpi, packages/openpi-client: on connect the server sends a map, then one map
for each request. A text frame is an error.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.policy.plan import Chunk, Prefix
from robocache_ros.policy.policies import RunnablePolicy, server
from robocache_ros.spec import FusionSpec

PORT = 8000
CLOSE_S = 0.2  # until a connection that has failed is closed


def encode(value: Any) -> Any:
    """Return an array as openpi's msgpack_numpy has it."""
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    raise TypeError(f"{type(value).__name__} cannot be sent")


def decode(value: dict[Any, Any]) -> Any:
    """Return the array or the number of a mapping, else the mapping; ValueError if it is damaged."""
    if b"__ndarray__" in value:
        return server.array(value[b"dtype"], value[b"shape"], value[b"data"])
    if b"__npgeneric__" in value:
        return value[b"data"]
    return value


class OpenPiPolicy(RunnablePolicy):
    """Plans on a server; connects for the first plan, and again after an error.

    Attributes:
        metadata: what the server sent on connect.
    """

    def __init__(self, text: str, spec: FusionSpec) -> None:
        self._address = server.read_address(text, PORT)
        self._where, self._spec, self._options = printable(text, 60), spec, server.options_of(spec)
        self._observation = server.Observation(spec, lambda stream: f"observation/{stream.name}")
        self._client = need("websockets.sync.client", "policies")
        exceptions = need("websockets.exceptions", "policies")
        self._errors = (OSError, exceptions.WebSocketException)  # a timeout is an OSError
        need("msgpack", "policies")
        self._connection: Any = None
        self._until_closed = contextlib.ExitStack()
        self.metadata: dict[str, Any] = {}

    def plan(
        self, frame: FusedFrame, tick: int, prefix: Prefix | None = None, earlier: Sequence[FusedFrame] = ()
    ) -> Chunk:
        """Plan on the server; RoboCacheError if it does not answer in time, or not with actions."""
        request: dict[str, Any] = {key: self._observation.values(key, frame) for key in self._observation.streams}
        request[self._options.task_key or "prompt"] = server.task_of(self._spec)
        data = server.pack(request, encode)
        try:
            if self._connection is None:
                self._connect()
            self._connection.send(data)
            answer = self._received()
        except self._errors as error:
            self.close()
            why = f"no answer in {self._options.timeout_s:g} s" if isinstance(error, TimeoutError) else _shown(error)
            raise RoboCacheError(f"{self._where}: {why}; check that the server runs") from None
        except BaseException:
            self.close()
            raise
        keys = self._options.action_keys or ("actions",)
        return Chunk(tick, server.joined_actions(answer, keys, self._spec, self._where))

    def close(self) -> None:
        """Close the connection."""
        self._connection = None
        with contextlib.suppress(*self._errors):
            self._until_closed.close()

    def _connect(self) -> None:
        timeout_s = self._options.timeout_s
        # A socket of its own: no proxy is used, and a server that reads nothing does not block for ever.
        opened = socket.create_connection(self._address, timeout_s)
        seconds, rest = divmod(timeout_s, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(rest * 1e6)))
        key = server.api_key()
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        try:
            connecting = self._client.connect(
                f"ws://{host}:{self._address.port}",
                sock=opened,
                compression=None,
                max_size=server.MAX_ANSWER_BYTES,
                open_timeout=timeout_s,
                close_timeout=CLOSE_S,
                additional_headers={"Authorization": f"Api-Key {key}"} if key else None,
            )
            self._connection = self._until_closed.enter_context(connecting)
        except BaseException:
            opened.close()
            raise
        self.metadata = self._received()

    def _received(self) -> dict[str, Any]:
        data = self._connection.recv(timeout=self._options.timeout_s)
        if isinstance(data, str):  # a traceback
            line = next((line for line in reversed(data.splitlines()) if line.strip()), "")
            raise RoboCacheError(f"{self._where}: the server failed: {printable(line.strip(), 110)}")
        answer = server.unpack(data, decode, self._where)
        if not isinstance(answer, dict):
            raise RoboCacheError(f"{self._where}: an answer of {server.shape_of(answer)}, not a map; is it openpi?")
        return answer


def _shown(error: BaseException) -> str:
    if str(error).startswith("no close frame"):
        return "the server closed the connection"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"the server refused the key (HTTP {status}; {server.KEY_VARIABLE})"
    return printable(getattr(error, "strerror", None) or str(error) or repr(error), 90)
