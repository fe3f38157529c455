"""What the policies on servers share: addresses, observations under a server's names, and what is read of answers.

A server is not trusted: its answers are limited in size and time, and contain numbers and text only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.policy.plan import MAX_HORIZON
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.layout import Layout
from robocache_ros.spec.run import RunOptions

Float32: TypeAlias = "NDArray[np.float32]"

MAX_ANSWER_BYTES = 4 << 20  # a chunk of 4096 rows has 2 MiB with 64 columns in float64
KEY_VARIABLE = "ROBOCACHE_POLICY_KEY"  # environment variable of the key or token of a server
NUMBERS = "fiub"  # kinds of dtypes that are read


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


def read_address(text: str, port: int) -> Address:
    """Read `kind://host:port`; `port` is that of a text without one.

    Raises:
        RoboCacheError: it has more or less than a host and a port.
    """
    try:
        parts = urlsplit(text)
        host, given = parts.hostname, parts.port
    except ValueError:
        host, given = None, None
    scheme = text.partition("://")[0]
    if not host or text not in (f"{scheme}://{parts.netloc}", f"{scheme}://{parts.netloc}/") or "@" in parts.netloc:
        raise RoboCacheError(f"policy: {printable(text, 60)} is not an address; write {scheme}://HOST:{port}")
    return Address(host, given or port)


def api_key() -> str:
    """Return the key of the server; empty if there is none."""
    return os.environ.get(KEY_VARIABLE, "")


def options_of(spec: FusionSpec) -> RunOptions:
    """Return the options of a run."""
    return spec.run or RunOptions()


def task_of(spec: FusionSpec) -> str:
    """Return the instruction of a run, else that of the dataset."""
    return options_of(spec).task or (spec.dataset or DatasetOptions()).task


class Observation:
    """Streams of a frame under the keys of a server.

    Args:
        spec: with the option `observation`.
        name: the key of a stream, where the option is not set: vectors and cameras.

    Attributes:
        streams: by key; several are joined.

    Raises:
        RoboCacheError: what is joined are not vectors.
    """

    def __init__(self, spec: FusionSpec, name: Callable[[StreamSpec], str]) -> None:
        given = dict(options_of(spec).observation)
        self.streams = {key: tuple(map(spec.stream, names)) for key, names in given.items()} or {
            name(stream): (stream,)
            for stream in spec.streams
            if stream.role == "observation" and stream.kind != "cloud" and not stream.rows
        }
        for key, streams in self.streams.items():
            other = next((s for s in streams if s.kind != "vector" or s.rows), None)
            if len(streams) > 1 and other:
                raise RoboCacheError(
                    f"run.observation.{printable(key, 60)}: {other.name} is not a vector; give it a key of its own"
                )

    def values(self, key: str, frame: FusedFrame) -> NDArray[Any]:
        """Return (D,) float32 vectors, (H, W, C) images, uint8 if they have 8 bits, and other tensors as they are."""
        parts = []
        for stream in self.streams[key]:
            tensor = frame.tensors.get(stream.name)
            if tensor is None or not tensor.numel():
                raise RoboCacheError(f"{stream.name}: the frame has no value; wait for the fusion node")
            value = tensor[-1] if stream.kind == "vector" else tensor
            if stream.kind == "image":  # grey has three channels, as in a dataset
                value = (value.expand(3, -1, -1) if value.dtype == torch.uint8 else value).permute(1, 2, 0)
            parts.append(np.ascontiguousarray(value.cpu().numpy()))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def joined_actions(answer: Mapping[str, Any], keys: Iterable[str], spec: FusionSpec, where: str) -> Float32:
    """Join the arrays of an answer into the rows of a chunk.

    Args:
        answer: (H, D) arrays by key.
        keys: of the arrays, in the order of the columns.
        spec: with the action streams.
        where: the server, for errors.

    Returns:
        (H, A) float32.

    Raises:
        RoboCacheError: an array is missing, or its shape is not possible.
    """
    parts = []
    for key in keys:
        value = answer.get(key)
        if not isinstance(value, np.ndarray) or value.ndim != 2:
            has = ", ".join(f"{printable(name, 20)} {shape_of(each)}" for name, each in list(answer.items())[:4])
            raise RoboCacheError(f"{where}: no (H, D) {printable(key, 30)} in {has or 'nothing'}; set run.action_keys")
        parts.append(value)
    shapes = [value.shape for value in parts]
    width = sum(stream.dim for stream in Layout(spec).vectors_of("action"))
    rows = shapes[0][0]
    if any(shape[0] != rows for shape in shapes) or sum(s[1] for s in shapes) != width or not 1 <= rows <= MAX_HORIZON:
        shown = " and ".join(map(str, shapes[:4]))
        raise RoboCacheError(f"{where}: actions of {shown}, but the spec has (H, {width}); set run.action_keys")
    return np.concatenate(parts, axis=1).astype(np.float32)


def shape_of(value: object) -> str:
    """Return the shape of an array, else the type of a value."""
    return str(value.shape) if isinstance(value, np.ndarray) else type(value).__name__


def pack(value: Any, encode: Callable[[Any], Any]) -> bytes:
    """Return a value as msgpack; `encode` makes plain values of arrays."""
    packed: bytes = need("msgpack", "policies").packb(value, default=encode)
    return packed


def unpack(data: bytes, decode: Callable[[dict[Any, Any]], Any], where: str) -> Any:
    """Return the value of a message; `decode` makes arrays of mappings.

    Raises:
        RoboCacheError: it is too large, or damaged.
    """
    if len(data) > MAX_ANSWER_BYTES:
        raise RoboCacheError(f"{where}: an answer of {len(data):,} bytes; {MAX_ANSWER_BYTES:,} are the limit")
    try:
        return need("msgpack", "policies").unpackb(data, object_hook=decode, strict_map_key=False)
    except Exception as error:  # of many kinds, and from outside
        text = printable(str(error) or repr(error), 60)
        raise RoboCacheError(f"{where}: an answer that cannot be read ({text}); is it such a server?") from None


def array(dtype: Any, shape: Any, data: Any, *, is_fortran: bool = False) -> NDArray[Any]:
    """Return the array of numbers that a message describes; ValueError if it has other values or another size."""
    found = np.dtype(dtype if isinstance(dtype, (str, np.dtype)) and len(str(dtype)) < 16 else "O")
    if found.kind not in NUMBERS:
        raise ValueError(f"dtype {printable(dtype, 20)} is not one of numbers")
    flat: NDArray[Any] = np.frombuffer(data, found)
    return flat.reshape(tuple(int(each) for each in shape), order="F" if is_fortran else "C")
