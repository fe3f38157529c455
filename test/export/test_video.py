"""Video of frames of any size: what is decoded has the size that the dataset declares."""

from __future__ import annotations

import json
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("av", reason="needs the `export` extra")

import av

from robocache_ros.bags.describe import describe
from robocache_ros.bags.suggest.first_spec import suggest_spec
from robocache_ros.bags.write import write_bag
from robocache_ros.exporter.job import export
from robocache_ros.formats.video import JoinedVideo, VideoFile, encoder_of, joined_files, video_part
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions

START_NS = 1_700_000_000_000_000_000
SMALL_OR_ODD = [(1, 1), (2, 1), (2, 2), (14, 30), (16, 640), (64, 32), (64, 62), (63, 65), (4, 4000), (4000, 4)]


@pytest.mark.parametrize("size", [*SMALL_OR_ODD, (64, 64), (64, 1024)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.timeout(30)  # an encoder that is given a size that it cannot take may never end
def test_frames_of_any_size_are_decoded_in_that_size(tmp_path: Path, size: tuple[int, int]) -> None:
    height, width = size
    ramp = np.linspace(0, 255, width, dtype=np.uint8)
    image = np.broadcast_to(ramp, (3, height, width))
    video = VideoFile(tmp_path / "observation.images.x" / "chunk-000" / "file-000.mp4", size, 50)
    for _ in range(5):
        video.write(image)
    video.close()
    with av.open(str(video.path)) as container:
        stream = container.streams.video[0]
        codec = stream.codec_context.codec  # PyAV 12 has the decoder's name alone
        assert (getattr(codec, "canonical_name", codec.name), stream.pix_fmt) == (
            video.encoder.codec,
            video.encoder.pixel_format,
        )
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert [frame.shape for frame in frames] == [(height, width, 3)] * 5
    # Lossy, and on so small a frame more than elsewhere; a picture of another layout would be off by 80.
    assert abs(frames[0].astype(int) - image.transpose(1, 2, 0)).mean() < 12


def test_even_frames_from_64_pixels_on_are_av1_where_pyav_has_its_encoder() -> None:
    assert encoder_of((64, 64)).codec == ("av1" if "libsvtav1" in av.codecs_available else "h264")
    assert {encoder_of(size).pixel_format for size in SMALL_OR_ODD} == {"yuv444p"}


@pytest.mark.parametrize("size", [(2, 2), (63, 65)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_recording_of_small_or_odd_images_becomes_a_dataset_that_says_how(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    height, width = size
    pixels = bytes(range(256)) * (1 + 3 * height * width // 256)

    def image(stamp_ns: int) -> bytes:
        head = struct.pack("<IIII", *divmod(stamp_ns, 10**9), 1, 0) + struct.pack("<II", height, width)
        encoding = struct.pack("<I", 5) + b"rgb8\0" + b"\0"  # and is_bigendian
        body = struct.pack("<2xII", 3 * width, 3 * height * width) + pixels[: 3 * height * width]
        return b"\0\1\0\0" + head + encoding + body

    stamps = [START_NS + 50_000_000 * k for k in range(20)]
    topic = {"/camera/image_raw": "sensor_msgs/msg/Image"}
    bag = write_bag(tmp_path / "bag", topic, [("/camera/image_raw", stamp, image(stamp)) for stamp in stamps])
    spec = tmp_path / "spec.yaml"
    spec.write_text(suggest_spec(describe(bag)), encoding="utf-8")

    export([bag], load_spec(spec), tmp_path / "out", DatasetOptions(task="look"))

    info = json.loads((tmp_path / "out/meta/info.json").read_text(encoding="utf-8"))
    feature = info["features"]["observation.images.camera"]
    assert feature["shape"] == [height, width, 3]
    assert (feature["info"]["video.codec"], feature["info"]["video.pix_fmt"]) == ("h264", "yuv444p")
    (file,) = (tmp_path / "out/videos").rglob("*.mp4")
    with av.open(str(file)) as container:
        assert next(container.decode(video=0)).to_ndarray(format="rgb24").shape == (height, width, 3)
    how = "8-bit RGB as h264 video (yuv444p), lossy"
    described = json.loads((tmp_path / "out/meta/robocache.json").read_text(encoding="utf-8"))
    assert described["images"]["camera"]["stored"] == how
    assert f"camera: {how}." in (tmp_path / "out/report.html").read_text(encoding="utf-8")


def encoded(file: Path, size: tuple[int, int], frames: int) -> Path:
    """A video of noise."""
    video = VideoFile(file, size, 50)
    for image in np.random.default_rng(frames).integers(0, 256, (frames, 3, *size), np.uint8):
        video.write(image)
    video.close()
    return file


def decoded(file: Path) -> tuple[list[Fraction], list[NDArray[np.uint8]]]:
    """The times of the frames, and the frames."""
    with av.open(str(file)) as container:
        frames = list(container.decode(video=0))
        return [f.pts * f.time_base for f in frames], [f.to_ndarray(format="rgb24") for f in frames]


@pytest.mark.parametrize("size", [(64, 64), (63, 65)], ids=["av1", "h264"])
def test_parts_of_a_video_are_joined_without_a_change(tmp_path: Path, size: tuple[int, int]) -> None:
    counts = (33, 1, 20)
    parts = [encoded(tmp_path / "parts" / f"{count}.mp4", size, count) for count in counts]
    video = JoinedVideo(tmp_path, "chunk-{chunk_index}/file-{file_index}.mp4", 50, 200, 1000)
    places = [video.append(part, count) for part, count in zip(parts, counts, strict=True)]
    video.close()
    assert places == [(0, 0, 0), (0, 0, 33), (0, 0, 34)]
    times, frames = decoded(tmp_path / "chunk-0" / "file-0.mp4")
    assert times == [Fraction(index, 50) for index in range(54)]
    assert np.array_equal(frames, [frame for part in parts for frame in decoded(part)[1]])


@pytest.mark.parametrize("share", [0.0, 0.5, 1.5, 100.0])
def test_the_files_of_joined_parts_are_known_before_they_are_joined(tmp_path: Path, share: float) -> None:
    sizes = [(64, 64), (64, 64), (64, 64), (96, 64), (96, 64), (64, 64)]
    paths = [encoded(tmp_path / f"{index}.mp4", size, 5) for index, size in enumerate(sizes)]
    parts = [video_part(path) for path in paths]
    file_mb = share * parts[0].nbytes / 1e6
    video = JoinedVideo(tmp_path, "{chunk_index}-{file_index}.mp4", 50, file_mb, 100)
    places = [video.append(path, 5) for path in paths]
    video.close()
    files = joined_files(parts, file_mb)
    assert [file for _, file, _ in places] == [file for file, group in enumerate(files) for _ in group]


def test_parts_with_other_settings_and_those_after_a_large_file_begin_a_file(tmp_path: Path) -> None:
    sizes = [(64, 64), (96, 64), (96, 64)]
    parts = [encoded(tmp_path / f"{index}.mp4", size, 5) for index, size in enumerate(sizes)]
    video = JoinedVideo(tmp_path, "chunk-{chunk_index}/file-{file_index}.mp4", 50, 200, 2)
    places = [video.append(part, 5) for part in parts[:2]]
    video.close()
    assert places == [(0, 0, 0), (0, 1, 0)]
    small = JoinedVideo(tmp_path, "small/chunk-{chunk_index}/file-{file_index}.mp4", 50, 0, 2)
    assert [small.append(part, 5) for part in parts] == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
    small.close()
