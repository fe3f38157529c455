"""The base of all decoders: reads the wanted values of a serialized message into one sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from robocache_ros.decode.cdr import Program, Reader, stamp, string, unchecked_stamp
from robocache_ros.decode.definitions import HEADER, Path, Struct, resolve
from robocache_ros.decode.payloads import Buffer, Sample
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import StreamSpec

Wanted = list[tuple[Path, Reader]]  # values of a message, and how each is read


class Decoder(ABC):
    """Turns the serialized messages of one stream into samples.

    Not thread-safe. changed_sets: how often the joints of a message differed from those of the previous message.
    filled: messages with a NaN or infinite value that was replaced.
    """

    changed_sets: int = 0
    filled: int = 0

    def __init__(
        self, stream: StreamSpec, message: Struct, wanted: Wanted, near: Path = (), stamped: Path = ()
    ) -> None:
        """Compile the wanted paths; the value at `stamped`, or the header nearest to `near`, stamps the sample."""
        header = nearest_header(message, near)
        stamp_path: Path | None = stamped or (header and (*header, "stamp"))
        if stamp_path is None and stream.stamp != "receive":
            raise RoboCacheError(f"stamp: {stream.stamp!r}, but {message.name} has no header; use receive")
        self._message = message
        self._has_stamp = stamp_path is not None
        self._stamp_path = stamp_path
        self._has_frame = header is not None and stream.voxels is not None and bool(stream.voxels.frame)
        if stamp_path is not None:
            framed: Wanted = [((*header, "frame_id"), string)] if header and self._has_frame else []
            # A stream by receive time does not use the stamp, so an invalid stamp does not drop the message.
            read_stamp = unchecked_stamp if stream.stamp == "receive" else stamp
            wanted = [*framed, (stamp_path, read_stamp), *wanted]
        for path, reader in wanted:
            reader(resolve(message, path), "<", 0)  # raises if the type lacks the value or has another kind of it
        self._program = Program(message, wanted)

    def decode_cdr(self, data: Buffer | bytearray) -> Sample:
        """The sample of a serialized message; DecodeError if it cannot be used."""
        if not isinstance(data, bytes):
            data = memoryview(data).cast("B")
        values = self._program.read(data)
        if self._has_frame:
            return self._sample(*values[1:])._replace(frame_id=values[0])
        return self._sample(*values) if self._has_stamp else self._sample(None, *values)

    @abstractmethod
    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample: ...


def nearest_header(message: Struct, path: Path) -> Path | None:
    """The path of the header that stamps the value at `path`: the header of the innermost message around it."""
    for depth in range(len(path), -1, -1):
        around = resolve(message, path[:depth])
        header = dict(around.fields).get("header") if isinstance(around, Struct) else None
        if isinstance(header, Struct) and header.name == HEADER:
            return (*path[:depth], "header")
    return None
