"""Joins videos of episodes into a few large files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.untrusted_files import given_file, open_container


class VideoPart(NamedTuple):
    """What decides in which file of a `JoinedVideo` a part is.

    Attributes:
        nbytes: of its packets.
        settings: a hash of the settings of its codec.
    """

    nbytes: int
    settings: str


def video_part(path: Path) -> VideoPart:
    """Read the packets of a part."""
    with open_container(given_file(path)) as source:
        stream = source.streams.video[0]
        settings = hashlib.sha256(bytes(stream.codec_context.extradata or b"")).hexdigest()[:16]
        return VideoPart(sum(packet.size for packet in source.demux(stream) if packet.dts is not None), settings)


def joined_files(parts: Sequence[VideoPart], file_mb: float) -> list[range]:
    """Return which parts, in their order, are in each file of a `JoinedVideo`."""
    files, start, nbytes = [], 0, 0
    for index, part in enumerate(parts):
        if index > start and (nbytes >= file_mb * 1_000_000 or part.settings != parts[start].settings):
            files.append(range(start, index))
            start, nbytes = index, 0
        nbytes += part.nbytes
    return [*files, range(start, len(parts))]


class JoinedVideo:
    """Joins the video files of one feature into a few large files. Packets are copied, not encoded again.

    Args:
        folder: the folder of the dataset.
        path: the files' names, with {chunk_index} and {file_index}.
        rate_hz: frames a second.
        file_mb: file size from which the next part starts a new file.
        chunk_files: number of files per folder.
        files: number of files before the first one.
    """

    def __init__(
        self, folder: Path, path: str, rate_hz: int, file_mb: float, chunk_files: int, *, files: int = 0
    ) -> None:
        self._folder, self._path, self._rate_hz = folder, path, rate_hz
        self._file_bytes = file_mb * 1_000_000
        self._chunk_files = chunk_files
        self._container: Any = None
        self._stream: Any = None
        self._settings = b""  # codec settings, which are equal for all parts of a file
        self._files = files
        self._frames = self._bytes = self._packets = 0

    def append(self, part: Path, frames: int) -> tuple[int, int, int]:
        """Add a file with `frames` frames; return the chunk, the file and the index of its first frame."""
        with open_container(given_file(part)) as source:
            stream = source.streams.video[0]
            settings = bytes(stream.codec_context.extradata or b"")
            if self._bytes >= self._file_bytes or settings != self._settings:
                self.close()
            if self._container is None:
                self._open(stream)
                self._settings = settings
            first, before = self._frames, self._packets
            shift = int(Fraction(first, self._rate_hz) / stream.time_base)
            for packet in source.demux(stream):
                if packet.dts is not None:  # the last packet is empty
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = self._stream
                    self._bytes += packet.size
                    self._packets += 1
                    self._container.mux(packet)
        if self._packets - before != frames:
            raise RoboCacheError(f"{part}: has {self._packets - before} frames for {frames} rows; export again")
        self._frames += frames
        return *divmod(self._files - 1, self._chunk_files), first

    def close(self) -> None:
        """Write the index of the open file."""
        container, self._container = self._container, None
        self._frames = self._bytes = 0
        if container is not None:
            container.close()

    def _open(self, stream: Any) -> None:
        chunk, file = divmod(self._files, self._chunk_files)
        path = self._folder / self._path.format(chunk_index=chunk, file_index=file)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container = need("av", "export").open(str(path), "w")
        self._stream = add_stream_like(self._container, stream)
        self._files += 1


def add_stream_like(container: Any, stream: Any) -> Any:
    """Add a stream for packets of another one to a container."""
    if hasattr(container, "add_stream_from_template"):
        return container.add_stream_from_template(stream, opaque=True)
    return container.add_stream(template=stream)  # PyAV before 14
