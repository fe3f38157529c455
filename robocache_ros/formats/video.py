"""Video files: settings of encoders, a file per episode, files joined without encoding again; depth as codes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.formats.statistics import Histogram, Stats
from robocache_ros.spec.dataset import MAX_CRF, PRESETS
from robocache_ros.storage.paths import AnyPath
from robocache_ros.untrusted_files import given_file, open_container

T = TypeVar("T")
MIN_M, MAX_M, SHIFT_M = 0.01, 10.0, 3.5
CODES = 1 << 12
UNITS = {"mm": 1000.0, "m": 1.0}  # units of depth images, and their number in a metre (REP 118)

_LOWEST, _HIGHEST = np.log(MIN_M + SHIFT_M), np.log(MAX_M + SHIFT_M)


def depth_codes(depth: NDArray[Any], unit: str) -> NDArray[np.uint16]:
    """Return the codes, 0 to 4095, of (...) depths in a unit of `UNITS`.

    A depth below 0.01 m has the first code and a depth above 10 m the last one. A missing depth (0, NaN) has the first.
    """
    metres = np.nan_to_num(depth.astype(np.float64) / UNITS[unit], nan=0.0, posinf=MAX_M, neginf=0.0)
    share = (np.log(np.maximum(metres, MIN_M) + SHIFT_M) - _LOWEST) / (_HIGHEST - _LOWEST)
    codes: NDArray[np.uint16] = np.rint(share * (CODES - 1)).clip(0, CODES - 1).astype(np.uint16)
    return codes


def depths_of_codes(unit: str) -> NDArray[np.float64]:
    """Return the (4096,) depths that the codes stand for, in a unit of `UNITS`."""
    share = np.arange(CODES) / (CODES - 1)
    metres: NDArray[np.float64] = np.exp(_LOWEST + share * (_HIGHEST - _LOWEST)) - SHIFT_M
    return metres * UNITS[unit]


def depth_stats(codes: Histogram, unit: str) -> Stats:
    """Return the statistics of depths, [1][1][1] in a unit of `UNITS`, from counts of codes without missing ones."""
    counts = codes.counts.copy()
    if counts[:, 1:].any():
        counts[:, 0] = 0
    return Histogram(counts.tolist(), codes.images).stats(depths_of_codes(unit))


def x264_repeatable() -> dict[str, str]:
    """Return the options of FFmpeg's libx264 that make its output a function of the frames.

    With AVX-512 instructions, x264 (builds 164 and 165) reads past the rows of its macroblock tree if a frame has not a
    multiple of 8 macroblocks in a row, as 224 pixels have. What is there in memory then changes the quantizers, so that
    about one encoding in twenty has other bytes. AVX2 instructions do not, and are as fast.
    """
    try:
        has_avx512 = "avx512" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return {}
    return {"x264-params": "asm=avx2"} if has_avx512 else {}


class Encoder(NamedTuple):
    """An encoder and its settings."""

    codec: str  # name in info.json
    name: str  # name in FFmpeg
    pixel_format: str
    options: dict[str, str]


@dataclass(frozen=True)
class VideoSettings:
    """Quality, speed and distance of key frames; None: the default of the codec, which is LeRobot's."""

    # Constant rate factor; lower is better and larger: 0..63 of av1, 0..51 of h264, which uses 51 for more
    crf: int | None = None
    # `0` (slow, small files) to `13` of av1, or `ultrafast` to `placebo` of h264; the other codec uses its default
    preset: str | None = None
    # Number of frames from one key frame to the next; a reader of any frame decodes so many at most
    gop: int | None = None

    def applied(self, encoder: Encoder) -> Encoder:
        """Return the encoder with these settings.

        With key frames further apart than two, the preset of h264 decides on B-frames, as in FFmpeg and LeRobot.
        """
        given = {
            "crf": None if self.crf is None else str(min(self.crf, MAX_CRF[encoder.codec])),
            "preset": self.preset if self.preset in PRESETS[encoder.codec] else None,
            "g": None if self.gop is None else str(self.gop),
        }
        options = {**encoder.options, **{k: v for k, v in given.items() if v is not None}}
        if self.gop is not None and self.gop > 2:
            options.pop("bf", None)
        return encoder._replace(options=options)


# The settings of LeRobot: a key frame every second frame, so that random access decodes at most two frames. One thread,
# because the number of threads may change the output, and because cameras are encoded in parallel. B-frames need more
# than two frames from one key frame to the next.
_AV1 = Encoder(
    "av1", "libsvtav1", "yuv420p", {"g": "2", "crf": "30", "preset": "12", "threads": "1", "svtav1-params": "lp=1"}
)
_H264 = Encoder("h264", "libx264", "yuv420p", {"g": "2", "crf": "23", "preset": "veryfast", "bf": "0", "threads": "1"})
_H264.options.update(x264_repeatable())
_H264_ANY_SIZE = _H264._replace(pixel_format="yuv444p")
# Depth codes, lossless. A faster preset makes files a twentieth larger, and four times as many frames a second.
_HEVC = Encoder("hevc", "libx265", "gray12le", {"g": "2", "preset": "ultrafast"})
_HEVC.options["x265-params"] = "lossless=1:bframes=0:open-gop=0:frame-threads=1:pools=none:info=0:log-level=none"
DEPTH_VIDEO = "hevc"
_REORDERED = 2  # frames by which x264 decodes a frame with B-frames before its time, at most
MIN_SIDE = 64  # SVT-AV1 refuses sides below 4 pixels, and hangs for some narrow frames, such as 16x640 and 4000x4


def encoder_of(size: tuple[int, int], codec: str = "av1") -> Encoder:
    """Return the encoder for frames of a height and width of at least 1 pixel, and av1, h264 or `DEPTH_VIDEO`.

    With av1: h264 if PyAV has no AV1 encoder. Both halve the color resolution, which requires even sizes. Frames of odd
    or small sizes use h264 with full color resolution, which supports any size.
    """
    available = need("av", "export").codecs_available
    usual = min(size) >= MIN_SIDE and not any(side % 2 for side in size)
    wanted = ((_AV1, _H264) if codec == "av1" else (_H264,)) if usual else (_H264_ANY_SIZE,)
    for encoder in (_HEVC,) if codec == DEPTH_VIDEO else wanted:
        if encoder.name in available:
            return encoder
    raise RoboCacheError(
        f"video: this PyAV has no encoder for {size[0]}x{size[1]} {codec} frames; use its wheel, or store no video"
    )


def opened_apart(encode: Callable[[], T]) -> T:
    """Call what opens an encoder, and leave the scheduling of the process as it is.

    SVT-AV1, where root opens it, makes the calling thread and its own ones real-time threads: with SCHED_FIFO and
    priority 99 they, and all threads and processes that they start later, would starve the rest of the machine. So it
    is opened in a thread that ends.
    """
    before = _threads()
    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(encode).result()
    finally:
        for thread in _threads() - before:
            with suppress(OSError):  # it has ended
                if os.sched_getscheduler(thread) != os.sched_getscheduler(0):
                    os.sched_setscheduler(thread, os.sched_getscheduler(0), os.sched_getparam(0))


def _threads() -> set[int]:
    """The threads of this process; none where there is no scheduling to look after, as on macOS."""
    if not hasattr(os, "sched_setscheduler"):
        return set()
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return set()


class VideoFile:
    """A new mp4 file that is written frame by frame at a fixed rate, in av1, h264 or `DEPTH_VIDEO` for depth codes."""

    def __init__(
        self, path: Path, size: tuple[int, int], rate_hz: int, codec: str = "av1", settings: VideoSettings | None = None
    ) -> None:
        height, width = size
        av = need("av", "export")
        av.logging.set_level(av.logging.ERROR)
        os.environ.setdefault("SVT_LOG", "0")  # only fatal errors; PyAV raises others, with advice
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.frames = self._packets = 0
        found = encoder_of(size, codec)
        self.encoder = settings.applied(found) if settings else found
        self._container = av.open(str(path), "w")
        self._stream: Any = self._container.add_stream(self.encoder.name, rate_hz, options=self.encoder.options)
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = self.encoder.pixel_format
        self._time_base = Fraction(1, rate_hz)
        self._early = _REORDERED if self.encoder.name == "libx264" and "bf" not in self.encoder.options else 0
        # The newer function does not copy the image.
        self._make_frame = getattr(av.VideoFrame, "from_numpy_buffer", av.VideoFrame.from_ndarray)
        self._empty_frame = av.VideoFrame

    def write(self, image: NDArray[Any]) -> None:
        """Encode a (3, H, W) uint8 RGB image as the next frame, or (H, W) uint16 depth codes.

        An image is written fastest if its memory is in the order (H, W, 3).
        """
        if image.ndim == 3:
            frame = self._make_frame(np.ascontiguousarray(image.transpose(1, 2, 0)), format="rgb24")
        else:
            frame = self._depth_frame(image)
        frame.pts = self.frames
        frame.time_base = self._time_base  # the stream's time base changes when the file header is written
        self._encode(frame)
        self.frames += 1

    def _depth_frame(self, codes: NDArray[np.uint16]) -> Any:
        height, width = codes.shape
        frame = self._empty_frame(width, height, self.encoder.pixel_format)
        plane = frame.planes[0]
        rows = np.zeros((plane.height, plane.line_size // 2), "<u2")
        rows[:, :width] = codes
        plane.update(rows.tobytes())
        return frame

    def close(self, *, complete: bool = True) -> None:
        """Flush the encoder and write the index; with `complete=False` only close the file.

        Errors:
            RoboCacheError: the encoder did not return as many frames as were written.
        """
        if complete:
            self._encode()
        self._container.close()
        if complete and self._packets != self.frames:
            raise RoboCacheError(
                f"{self.path.name}: {self.encoder.name} returned {self._packets} of {self.frames} frames; "
                "use another codec"
            )

    def _encode(self, *frames: Any) -> None:
        encode = partial(self._stream.encode, *frames)
        self._mux(encode() if self.frames else opened_apart(encode))  # the first call opens the encoder

    def _mux(self, packets: Any) -> None:
        for packet in packets:
            if self._early:  # x264 decodes the first frames of a short video later, so that it could not be joined
                packet.dts = int((self._packets - self._early) * self._time_base / packet.time_base)
            self._packets += 1
            self._container.mux(packet)


class VideoPart(NamedTuple):
    """What decides in which of several files a part is joined to others."""

    nbytes: int  # of its packets
    settings: str  # a hash of the settings of its codec


def video_part(path: Path) -> VideoPart:
    """Read the packets of a part."""
    with open_container(given_file(path)) as source:
        stream = source.streams.video[0]
        settings = hashlib.sha256(bytes(stream.codec_context.extradata or b"")).hexdigest()[:16]
        return VideoPart(sum(packet.size for packet in source.demux(stream) if packet.dts is not None), settings)


# Files of joined videos, as in LeRobot v3.0.
VIDEO_FILES = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
VIDEO_FILE_MB = 200  # from this size on, the next episode begins another file


def joined_files(parts: Sequence[VideoPart], file_mb: float) -> list[range]:
    """Return which parts, in their order, are in each file.

    From `file_mb` on, the next part begins another file, and so does one whose codec has other settings.
    """
    files, start, nbytes = [], 0, 0
    for index, part in enumerate(parts):
        if index > start and (nbytes >= file_mb * 1_000_000 or part.settings != parts[start].settings):
            files.append(range(start, index))
            start, nbytes = index, 0
        nbytes += part.nbytes
    return [*files, range(start, len(parts))]


def join_video(path: Path, parts: Iterable[tuple[AnyPath, int]], rate_hz: int) -> list[int]:
    """Join video files, given the frames of each, into one. Packets are copied, not encoded again.

    The settings of their codec are equal, as in a range of `joined_files`.

    Returns:
        The index of the first frame of each part in the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    firsts, frames, joined = [], 0, None
    with need("av", "export").open(str(path), "w") as container:
        for part, length in parts:
            count = 0
            with open_container(given_file(part)) as source:
                stream = source.streams.video[0]
                joined = joined or add_stream_like(container, stream)
                shift = int(Fraction(frames, rate_hz) / stream.time_base)
                for packet in source.demux(stream):
                    if packet.dts is not None:  # the last packet is empty
                        packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                        packet.stream = joined
                        container.mux(packet)
                        count += 1
            if count != length:
                raise RoboCacheError(f"{part}: has {count} frames for {length} rows; export again")
            firsts.append(frames)
            frames += length
    return firsts


def add_stream_like(container: Any, stream: Any) -> Any:
    """Add a stream for packets of another one to a container."""
    if hasattr(container, "add_stream_from_template"):
        return container.add_stream_from_template(stream, opaque=True)
    return container.add_stream(template=stream)  # PyAV before 14
