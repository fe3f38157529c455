"""Videos of a dataset against its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import printable
from robocache_ros.export.validate.findings import Findings, file_in
from robocache_ros.extras import need
from robocache_ros.untrusted_files import DatasetFile, open_container

DECODERS = {"libdav1d": "av1", "libaom-av1": "av1"}  # by their name the codec that they decode
TOLERANCE_S = 1e-4  # LeRobot's: a frame further from its row's time is not read


class Span(NamedTuple):
    """The frames of an episode in a video."""

    episode: int
    start_s: float  # time of its first frame in the file
    length: int


def check_video(
    findings: Findings,
    name: str,
    size: tuple[int, int] | None,
    fps: float,
    spans: Sequence[Span],
    stated: Mapping[str, Any] | None = None,
) -> NDArray[np.float64] | None:
    """Check that a video has a frame for every row of the episodes in it, and no other; return the frames' times.

    Frames are counted by their packets, without decoding. With `findings.decode` each of them is decoded.

    Args:
        findings: collects what is wrong.
        name: the file, relative to the dataset.
        size: height and width of the frames, if known.
        fps: rows a second.
        spans: the episodes in the file.
        stated: `video.codec` and `video.pix_fmt`, if they are known.
    """
    av = need("av", "export")
    times = None
    with findings.reading(name, av.FFmpegError, ValueError, IndexError):
        times, decoded, key_frames = _frames(findings, file_in(findings.dataset, name), name, size, stated or {})
        findings.counted["videos"] += 1
        findings.counted["video frames"] += len(times)
        if decoded is not None:
            findings.check(decoded == len(times), name, f"{decoded} of {len(times)} frames can be decoded")
            findings.counted["decoded frames"] += decoded
        _check_spans(findings, name, times, key_frames, fps, spans)
    return times


def _frames(
    findings: Findings, path: DatasetFile, name: str, size: tuple[int, int] | None, stated: Mapping[str, Any]
) -> tuple[NDArray[np.float64], int | None, set[int]]:
    """Return the times of the frames in s, the number that can be decoded if asked for, and which are key frames."""
    times: list[float] = []
    keys: list[bool] = []
    decoded = 0
    with open_container(path) as container:
        stream = container.streams.video[0]
        found = (stream.codec_context.height, stream.codec_context.width)
        if size is not None:
            text = f"frames of {found[0]}x{found[1]}; the feature has {size[0]}x{size[1]}"
            findings.check(found == size, name, text)
        codec = stream.codec_context.name
        for key, value in (("codec", DECODERS.get(codec, codec)), ("pix_fmt", stream.codec_context.pix_fmt)):
            told = stated.get(f"video.{key}")
            findings.check(told in (None, value), name, f"{key} is {value}; the feature has {printable(told, 30)}")
        for packet in container.demux(stream):
            if packet.size and packet.pts is not None:  # the last packet is empty: it flushes the decoder
                times.append(float(packet.pts * packet.time_base))
                keys.append(bool(packet.is_keyframe))
            if findings.decode:
                decoded += sum(not frame.is_corrupt for frame in packet.decode())
    order = np.argsort(times, kind="stable")  # packets are in the order of decoding
    key_frames = {index for index, packet in enumerate(order.tolist()) if keys[packet]}
    return np.array(times)[order], decoded if findings.decode else None, key_frames


def _check_spans(
    findings: Findings,
    name: str,
    times: NDArray[np.float64],
    key_frames: set[int],
    fps: float,
    spans: Sequence[Span],
) -> None:
    rows = sum(span.length for span in spans)
    findings.check(len(times) == rows, name, f"{len(times)} frames; its episodes have {rows} rows")
    if not len(times):
        return
    used = np.zeros(len(times), bool)
    for span in spans:
        wanted = span.start_s + np.arange(span.length) / fps
        nearest = np.clip(np.searchsorted(times, wanted - TOLERANCE_S), 0, len(times) - 1)
        off = np.abs(times[nearest] - wanted) > TOLERANCE_S
        where = f"{name}, episode {span.episode}"
        if off.any():
            first = int(off.argmax())
            findings.add(where, f"{int(off.sum())} of {span.length} rows have no frame, the first is row {first}")
            continue
        findings.check(not used[nearest].any(), where, "shares frames with another episode")
        findings.check(len(np.unique(nearest)) == len(nearest), where, "several rows have one frame")
        used[nearest] = True
    findings.check(0 in key_frames, name, "the first frame is not a key frame, so it cannot be decoded")
