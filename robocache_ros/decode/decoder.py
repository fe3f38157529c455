"""What all decoders share: the wanted values of a message, out of bytes or out of an object, into one sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from robocache_ros.decode.cdr import Program
from robocache_ros.decode.definitions import HEADER
from robocache_ros.decode.payloads import Buffer, DecodeError, Message, Sample
from robocache_ros.decode.types import Path, Struct, resolve
from robocache_ros.decode.values import STAMP, STRING, Kind, Pick
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import StreamSpec

Wanted = list[tuple[Path, Kind]]


class Decoder(ABC):
    """Turns the messages of one stream into samples; the same from serialized bytes and from message objects.

    For one thread at a time. changed_sets: how often the joints of a message were others than those of the one before.
    """

    changed_sets: int = 0

    def __init__(self, stream: StreamSpec, message: Struct, wanted: Wanted, near: Path = ()) -> None:
        """Compile the wanted paths; `near` is the path whose nearest header stamps the sample."""
        header = nearest_header(message, near)
        if header is None and stream.stamp == "header":
            raise RoboCacheError(f"stamp: 'header', but {message.name} has no header; use receive")
        self._has_stamp = header is not None
        self._has_frame = header is not None and stream.voxels is not None and bool(stream.voxels.frame)
        if header is not None:
            framed: Wanted = [((*header, "frame_id"), STRING)] if self._has_frame else []
            wanted = [*framed, ((*header, "stamp"), STAMP), *wanted]
        types = [resolve(message, path) for path, _ in wanted]
        self._program = Program(message, [(path, kind.reader) for path, kind in wanted])
        self._pickers = [_at(path, kind.picker(t)) for (path, kind), t in zip(wanted, types, strict=True)]

    def decode_cdr(self, data: Buffer | bytearray) -> Sample:
        """A sample out of a serialized message; DecodeError if it cannot be used."""
        if not isinstance(data, bytes):
            data = memoryview(data).cast("B")
        return self._finish(self._program.read(data))

    @np.errstate(over="raise", invalid="ignore")
    def decode_message(self, msg: Message) -> Sample:
        """A sample out of a message object, of rclpy or of rosbags; DecodeError if it cannot be used."""
        try:
            values = [pick(msg) for pick in self._pickers]
        except DecodeError:
            raise
        except FloatingPointError:
            raise DecodeError("range", "message: a value does not fit the type of its field") from None
        except IndexError:
            raise DecodeError("too_short", "message: has fewer elements than the field's path names") from None
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise DecodeError("type", f"message: {type(msg).__name__} is not of the stream's type: {error}") from None
        return self._finish(values)

    def _finish(self, values: list[Any]) -> Sample:
        if self._has_frame:
            return self._sample(*values[1:])._replace(frame_id=values[0])
        return self._sample(*values) if self._has_stamp else self._sample(None, *values)

    @abstractmethod
    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample: ...


def nearest_header(message: Struct, path: Path) -> Path | None:
    """The path of the header that stamps what lies at `path`: that of the innermost message around it."""
    for depth in range(len(path), -1, -1):
        around = resolve(message, path[:depth])
        header = dict(around.fields).get("header") if isinstance(around, Struct) else None
        if isinstance(header, Struct) and header.name == HEADER:
            return (*path[:depth], "header")
    return None


def _at(path: Path, pick: Pick) -> Pick:
    """Follow a path through attributes and elements, then pick."""

    def follow(value: Any) -> Any:
        for step in path:
            value = value[step] if isinstance(step, int) else getattr(value, step)
        return pick(value)

    return follow
