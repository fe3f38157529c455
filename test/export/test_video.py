"""Videos of images and of depth: sizes, settings, joining, and topics of video."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from contextlib import closing, nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as parquet
import pytest
import yaml
from numpy.typing import NDArray

from robocache_ros.bags.describe import describe
from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.suggest.first_spec import first_spec
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export_together, outputs_of
from robocache_ros.exporter.planned_recording import Moment, PlannedRecording
from robocache_ros.formats.lerobot.arrays import read_arrays
from robocache_ros.formats.statistics import Histogram
from robocache_ros.formats.validate import validate
from robocache_ros.formats.video import (
    VideoFile,
    VideoPart,
    VideoSettings,
    depth_codes,
    depth_stats,
    depths_of_codes,
    encoder_of,
    join_video,
    joined_files,
    video_part,
)
from robocache_ros.spec import VIDEO_TYPES, FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.decode.video_messages import COMPRESSED_VIDEO, HEIGHT, WIDTH, compressed_video, packets, pictures
from test.export.conftest import ROOT, contents, dry_run
from test.export.sensor_recording import DEPTH_SIZE, depth_recording, depth_spec
from test.exporting import export
from test.fuzz.node_inputs import raw_image

# Video of frames of any size: what is decoded has the size that the dataset declares.

START_NS = 1_700_000_000_000_000_000
TOO_SMALL = ((8, 6), (15, 16), (16, 15))  # for depth
SMALL_OR_ODD = [(1, 1), (2, 1), (2, 2), (14, 30), (16, 640), (64, 32), (64, 62), (63, 65), (4, 4000), (4000, 4)]


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="only Linux has policies of scheduling")
def test_an_encoder_leaves_the_scheduling_of_the_process_as_it_was(tmp_path):
    """As root, SVT-AV1 makes the calling thread and its own ones real-time threads."""
    before = policies()
    with closing(VideoFile(tmp_path / "v.mp4", (64, 64), 50)) as video:
        video.write(np.zeros((3, 64, 64), np.uint8))
        assert policies() == before


def policies() -> set[int]:
    """Of all threads, and what glibc knows of this one, which other libraries give the threads that they start."""
    known = ctypes.c_int(-1)
    ctypes.CDLL(None).pthread_getschedparam(
        ctypes.c_void_p(threading.get_ident()), ctypes.byref(known), ctypes.byref(ctypes.c_int())
    )
    return {known.value, *(os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task"))}


@pytest.mark.parametrize("size", [*SMALL_OR_ODD, (64, 64), (64, 1024)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.timeout(200)  # an encoder that is given a size that it cannot take may never end
def test_frames_of_any_size_are_decoded_in_that_size(tmp_path, size):
    height, width = size
    image = np.broadcast_to(np.linspace(0, 255, width, dtype=np.uint8), (3, height, width))
    with closing(VideoFile(tmp_path / "observation.images.x" / "chunk-000" / "file-000.mp4", size, 50)) as video:
        for _ in range(5):
            video.write(image)
    with av.open(str(video.path)) as container:
        stream = container.streams.video[0]
        codec = stream.codec_context.codec  # PyAV 12 has the decoder's name alone
        found = getattr(codec, "canonical_name", codec.name), stream.pix_fmt
    frames = decoded(video.path)[1]
    assert found == (video.encoder.codec, video.encoder.pixel_format)
    assert [frame.shape for frame in frames] == [(height, width, 3)] * 5
    # Lossy, and on so small a frame more than elsewhere; a picture of another layout would be off by 80.
    assert abs(frames[0].astype(int) - image.transpose(1, 2, 0)).mean() < 12


def test_even_frames_from_64_pixels_on_are_av1_where_pyav_has_its_encoder():
    assert encoder_of((64, 64)).codec == ("av1" if "libsvtav1" in av.codecs_available else "h264")
    assert {encoder_of(size).pixel_format for size in SMALL_OR_ODD} == {"yuv444p"}


@pytest.mark.parametrize("size", [(2, 2), (63, 65)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_recording_of_small_or_odd_images_becomes_a_dataset_that_says_how(tmp_path, size):
    height, width = size
    pixels = (np.arange(3 * height * width) % 256).astype(np.uint8).tobytes()
    stamps = [START_NS + 50_000_000 * k for k in range(20)]
    messages = [("/camera/image_raw", at, raw_image(at, *size, "rgb8", 3 * width, pixels)) for at in stamps]
    bag = write_bag(tmp_path / "bag", {"/camera/image_raw": "sensor_msgs/msg/Image"}, messages)
    spec = load_spec(yaml.safe_load(first_spec(describe(bag)).text))
    out = export([bag], spec, tmp_path / "out", DatasetOptions(task="look")).out
    feature = read_json(out / "meta/info.json")["features"]["observation.images.camera"]
    assert feature["shape"] == [height, width, 3]
    assert (feature["info"]["video.codec"], feature["info"]["video.pix_fmt"]) == ("h264", "yuv444p")
    (file,) = out.glob("videos/*/*/*.mp4")
    assert decoded(file)[1][0].shape == (height, width, 3)
    how = "8-bit RGB as h264 video (yuv444p), lossy"
    assert read_json(out / "meta/robocache.json")["images"]["camera"]["stored"] == how
    assert f"camera: {how}." in (out / "report.html").read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def encoded(file: Path, size: tuple[int, int], frames: int) -> Path:
    """A video of noise."""
    with closing(VideoFile(file, size, 50)) as video:
        for image in np.random.default_rng(frames).integers(0, 256, (frames, 3, *size), np.uint8):
            video.write(image)
    return file


def decoded(file: Path) -> tuple[list[Fraction], list[NDArray[np.uint8]]]:
    """The times of the frames, and the frames."""
    with av.open(str(file)) as container:
        frames = list(container.decode(video=0))
        return [f.pts * f.time_base for f in frames], [f.to_ndarray(format="rgb24") for f in frames]


@pytest.mark.parametrize("size", [(64, 64), (63, 65)], ids=["av1", "h264"])
def test_parts_of_a_video_are_joined_without_a_change(tmp_path, size):
    counts = (33, 1, 20)
    parts = [encoded(tmp_path / "parts" / f"{count}.mp4", size, count) for count in counts]
    joined = tmp_path / "chunk-0" / "file-0.mp4"
    assert join_video(joined, zip(parts, counts, strict=True), 50) == [0, 33, 34]
    times, frames = decoded(joined)
    assert times == [Fraction(index, 50) for index in range(54)]
    assert np.array_equal(frames, [frame for part in parts for frame in decoded(part)[1]])


def test_parts_with_other_settings_begin_a_file(tmp_path):
    sizes = [(64, 64), (96, 64), (96, 64)]
    parts = [video_part(encoded(tmp_path / f"{k}.mp4", size, 5)) for k, size in enumerate(sizes)]
    assert joined_files(parts, 200) == [range(1), range(1, 3)]


@pytest.mark.parametrize(
    ("file_mb", "files"), [*((mb, "0 1 2 3 4 5") for mb in (0, 1)), (1.5, "01 2 34 5"), (100, "012 34 5")]
)
def test_parts_are_joined_up_to_the_size_of_a_file(file_mb, files):
    parts = [VideoPart(1_000_000, settings) for settings in "aaabba"]
    assert " ".join("".join(map(str, group)) for group in joined_files(parts, file_mb)) == files


# Quality, speed and key frames of videos.

SIZE = (64, 96)


def written(path: Path, settings: VideoSettings) -> Path:
    """An h264 video of 12 frames."""
    rng = np.random.default_rng(0)
    scene = rng.integers(0, 240, (*SIZE, 3), dtype=np.uint8)  # one scene, because x264 begins others with a key frame
    with closing(VideoFile(path, SIZE, 30, "h264", settings)) as video:
        for _ in range(12):
            video.write((scene + rng.integers(0, 8, scene.shape, dtype=np.uint8)).transpose(2, 0, 1))
    return path


def test_settings_apply_to_the_codec_that_has_them():
    settings = VideoSettings(crf=60, preset="slow", gop=5)
    h264 = settings.applied(encoder_of(SIZE, "h264")).options
    assert (h264["crf"], h264["preset"], h264["g"]) == ("51", "slow", "5")
    if "libsvtav1" in av.codecs_available:  # older PyAV encodes h264 instead
        av1 = settings.applied(encoder_of(SIZE, "av1")).options
        assert (av1["crf"], av1["preset"], av1["g"]) == ("60", "12", "5")


def test_gop_is_the_distance_of_key_frames_and_lower_crf_is_larger(tmp_path):
    with av.open(str(written(tmp_path / "video.mp4", VideoSettings(gop=5)))) as video:
        keys = [packet.is_keyframe for packet in video.demux(video=0) if packet.dts is not None]
    assert [number for number, key in enumerate(keys) if key] == [0, 5, 10]
    small, large = (written(tmp_path / f"{crf}.mp4", VideoSettings(crf=crf)).stat().st_size for crf in (40, 10))
    assert small < large


def test_videos_with_b_frames_are_joined_whatever_their_lengths(tmp_path):
    lengths, settings = (30, 1, 2, 3, 1, 13), VideoSettings(crf=10, preset="medium", gop=12)
    firsts = np.cumsum([0, *lengths]).tolist()
    for first, length in zip(firsts, lengths, strict=False):
        with closing(VideoFile(tmp_path / f"{first}.mp4", SIZE, 30, "h264", settings)) as video:
            for level in range(first, first + length):
                video.write(np.full((3, *SIZE), 4 * level, np.uint8))
    parts = [(tmp_path / f"{first}.mp4", length) for first, length in zip(firsts, lengths, strict=False)]
    assert join_video(tmp_path / "joined.mp4", parts, 30) == firsts[:-1]
    with av.open(str(tmp_path / "joined.mp4")) as container:
        frames = list(container.decode(video=0))
        container.seek(0)
        times = [packet.pts for packet in container.demux(video=0) if packet.pts is not None]
    assert times != sorted(times)  # there are B-frames
    assert [round(30 * frame.time) for frame in frames] == list(range(firsts[-1]))
    levels = [frame.to_ndarray(format="rgb24").mean() / 4 for frame in frames]
    assert [round(level) for level in levels] == list(range(firsts[-1]))  # the loss is below half a level


ENCODE = """
import sys
from pathlib import Path
import numpy as np
from robocache_ros.formats.video import VideoFile

blocks = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
scene = blocks.repeat(8, 0).repeat(8, 1)  # 10 macroblocks in a row
video = VideoFile(Path(sys.argv[1]), (160, 160), 50, "h264")
for shift in range(24):
    video.write(np.roll(scene, shift, 1).transpose(2, 0, 1))
video.close()
"""


def test_h264_does_not_depend_on_the_contents_of_unused_memory(tmp_path):
    made = [tmp_path / "one.mp4", tmp_path / "other.mp4"]
    for path, fill in zip(made, ("1", "85"), strict=True):
        environment = {**os.environ, "MALLOC_PERTURB_": fill}  # glibc fills what it allocates
        subprocess.run([sys.executable, "-c", ENCODE, str(path)], env=environment, cwd=ROOT, check=True)
    assert made[0].read_bytes() == made[1].read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crf": 64}, "crf: 64 is not an integer from 0 to 63"),
        ({"crf": 52, "codec": "h264"}, "crf: 52 is not in 0..51"),
        ({"preset": "fastest"}, "preset: 'fastest' is not one of 0, 1"),
        ({"preset": "12", "codec": "h264"}, "preset: '12' is not one of h264"),
        ({"preset": "slow", "codec": "av1"}, "preset: 'slow' is not one of av1"),
        ({"gop": 0}, "gop: 0 is not an integer from 1 to 1000"),
        ({"codec": "hevc"}, "codec: 'hevc' is not one of auto, av1, h264"),
        ({"depth": "video", "formats": ("other",)}, "depth: only the format lerobot has depth video; add it"),
        ({"depth": "video", "media": "none"}, "depth: media none exports no images, depth included; use media video"),
    ],
)
def test_settings_that_no_encoder_has_are_refused(options, message):
    with pytest.raises(RoboCacheError, match=message.replace(".", r"\.")):
        DatasetOptions(**options)


def test_a_video_without_a_frame_for_each_row_is_not_written_or_joined(tmp_path, monkeypatch):
    video = written(tmp_path / "video.mp4", VideoSettings())
    with pytest.raises(RoboCacheError, match="has 12 frames for 13 rows"):
        join_video(tmp_path / "joined.mp4", [(video, 13)], 30)
    mux = VideoFile._mux
    monkeypatch.setattr(VideoFile, "_mux", lambda self, packets: mux(self, packets[1:]))
    with pytest.raises(RoboCacheError, match="of 12 frames; use another codec"):
        written(tmp_path / "lost.mp4", VideoSettings())


# Recordings of video: their pictures are those that a decoder gives in the order of the messages.

COUNT, FIRST_KEY = 40, 10
TYPES = {"/camera": VIDEO_TYPES[0], "/x": "std_msgs/msg/Float64"}
DEFINITIONS = {VIDEO_TYPES[0]: COMPRESSED_VIDEO}


@pytest.fixture(scope="session")
def video_spec() -> FusionSpec:
    front = {"topic": "/camera", "type": VIDEO_TYPES[0], "align": "hold", "max_age_ms": 100}
    front["image"] = {"size": [HEIGHT, WIDTH]}
    joint = {"topic": "/x", "type": "std_msgs/msg/Float64", "align": "hold", "stamp": "receive", "max_age_ms": 100}
    return load_spec({"robocache": 1, "rate_hz": 30, "actions": "none", "streams": {"front": front, "x": joint}})


@pytest.fixture(scope="session")
def recorded(tmp_path_factory) -> Path:
    """A camera at 30 Hz; the recording begins within a group of pictures, whose key frame it does not have."""
    messages = []
    for k, packet in enumerate(packets(pictures(COUNT), gop=FIRST_KEY)):
        at = START_NS + k * 33_333_333
        messages.append(("/x", at, b"\0\1\0\0" + np.float64(k).tobytes()))
        if k:
            messages.append(("/camera", at, compressed_video(at, packet)))
    return write_bag(tmp_path_factory.mktemp("video") / "bag", TYPES, messages, definitions=DEFINITIONS)


def test_each_tick_has_the_picture_of_its_message(recorded, video_spec):
    with Bag(recorded) as bag:
        run = BagRun(bag, video_spec)
        parts = list(run.frames())
    images = np.concatenate([part.media["front"].numpy() for part in parts])
    numbers = np.concatenate([part.fused[:, 0].numpy() for part in parts]).astype(int)
    assert numbers[0] == FIRST_KEY
    assert run.counters["front"]["dropped:no_key_frame"] == FIRST_KEY - 1
    wanted = np.stack([pictures(COUNT)[k] for k in numbers]).transpose(0, 3, 1, 2)
    # Lossy: a few steps, where the pictures of two messages differ by 32.
    assert np.abs(images.astype(int) - wanted).max() < 8


def test_datasets_of_two_rates_have_the_bytes_of_separate_ones(recorded, video_spec, tmp_path):
    outputs = outputs_of([("v", video_spec)], [30, 10], DatasetOptions(media="image"))
    for output, result in zip(outputs, export_together([recorded], outputs, tmp_path / "sets"), strict=True):
        separate = export([recorded], video_spec, tmp_path / "alone" / output.name, output.options)
        assert result.frames > 5
        assert contents(result.out) == contents(separate.out)


def test_a_dry_run_shows_the_frames_without_an_estimate(recorded, video_spec, tmp_path):
    run = dry_run([PlannedRecording(recorded)], video_spec, tmp_path / "out")
    assert run.frames == export([recorded], video_spec, tmp_path / "out").frames > 20
    assert run.estimate is None


def test_the_first_spec_has_the_video_and_can_be_exported(recorded, tmp_path):
    found = load_spec(yaml.safe_load(first_spec(describe(recorded)).text))
    assert [stream.type for stream in found.media] == [VIDEO_TYPES[0]]
    made = export([recorded], replace(found, actions="none"), tmp_path / "set")
    assert made.frames > COUNT - FIRST_KEY


def grid_recording(tmp_path: Path, encoder: str = "libx264", codec: str = "h264") -> Path:
    """A camera whose messages are at the ticks of 30 Hz, with key frames; joints too."""
    first, messages = START_NS * 30 // 10**9 + 1, []
    for k, packet in enumerate(packets(pictures(COUNT), encoder, gop=FIRST_KEY)):
        at = (first + k) * 10**9 // 30
        messages.append(("/camera", at, compressed_video(at, packet, codec)))
        messages.append(("/x", at, b"\0\1\0\0" + np.float64(k).tobytes()))
    return write_bag(tmp_path / "grid", TYPES, messages, definitions=DEFINITIONS)


@pytest.mark.parametrize(
    ("format_", "codec", "encoder", "decoder"),
    [*((name, "h264", "libx264", "h264") for name in ("lerobot", "lerobot21")), ("lerobot", "h265", "libx265", "hevc")],
)
def test_packets_on_the_grid_are_copied(video_spec, tmp_path, format_, codec, encoder, decoder):
    recording = grid_recording(tmp_path, encoder, codec)
    out = export([recording], video_spec, tmp_path / "set", DatasetOptions(formats=(format_,), codec="copy")).out
    (video,) = out.rglob("*.mp4")
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.average_rate) == (decoder, 30)
    with Bag(recording) as bag:
        images = np.concatenate([part.media["front"].numpy() for part in BagRun(bag, video_spec).frames()])
    assert np.array_equal(np.stack(decoded(video)[1]), images.transpose(0, 2, 3, 1))
    assert [finding for one in validate(out, decode=True) for finding in one.found] == []


def test_packets_are_not_copied_off_the_grid_resized_or_of_a_part(recorded, video_spec, tmp_path, bags, spec):
    half = video_spec.to_dict()
    half["streams"]["front"]["image"] = {"size": [HEIGHT // 2, WIDTH // 2]}
    grid, part = grid_recording(tmp_path), PlannedRecording(recorded, start=Moment(500_000_000, relative=True))
    for recording, given, codec, message in (
        (grid, replace(video_spec, rate_hz=60), "copy", "front: row 1 of an episode does not use the message after"),
        (grid, load_spec(half), "copy", r"front: images of \d+x\d+ are resized from \d+x\d+; leave image.size out"),
        (bags[0], spec, "copy", "codec: copy needs a video topic"),
        (part, video_spec, "auto", "from and to are not for video, the type of front; export the whole"),
    ):  # fmt: skip
        with pytest.raises(RoboCacheError, match=message):
            export([recording], given, tmp_path / "set", DatasetOptions(codec=codec))


# Depth images as video in a LeRobot dataset.

DEPTH = "observation.images.depth"


@pytest.fixture(scope="module", params=[("16UC1", "mm"), ("32FC1", "m")], ids=["16UC1", "32FC1"])
def depth_made(request, tmp_path_factory) -> tuple[Path, dict[str, Any], str, NDArray[np.uint16]]:
    """A dataset with depth as video, its feature, its unit, and the codes of the engine's images."""
    folder, (encoding, unit) = tmp_path_factory.mktemp("depth"), request.param
    bags, spec, frames = [depth_recording(folder, encoding, seed) for seed in (1, 2)], depth_spec(unit), []
    for path in bags:
        with Bag(path) as bag:
            frames += [part.media["depth"].numpy()[:, 0] for part in BagRun(bag, spec).frames()]
    out = export(bags, spec, folder / "out", DatasetOptions(depth="video")).out
    return out, read_json(out / "meta/info.json")["features"][DEPTH], unit, depth_codes(np.concatenate(frames), unit)


def test_v21_keeps_depth_as_arrays(tmp_path):
    options = DatasetOptions(formats=("lerobot", "lerobot21"), depth="video")
    out = export([depth_recording(tmp_path, "16UC1", 1)], depth_spec("mm"), tmp_path / "out", options).out
    assert DEPTH not in read_json(out / "lerobot21/meta/info.json")["features"]
    assert len(read_arrays(out / "lerobot21", "depth")[1])
    assert [str(finding) for findings in validate(out) for finding in findings.found] == []


def test_the_frames_of_the_video_are_the_codes_of_the_engines_images(depth_made):
    out, feature, unit, codes = depth_made
    (path,) = (out / "videos" / DEPTH).glob("*/*.mp4")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.pix_fmt == "gray12le"
        frames = list(container.decode(stream))
    planes = [frame.planes[0] for frame in frames]  # PyAV 12 makes no array of this format
    height, width = DEPTH_SIZE
    found = np.stack([np.frombuffer(plane, "<u2").reshape(height, -1)[:, :width] for plane in planes])
    np.testing.assert_array_equal(found, codes)
    assert [round(float(frame.pts * frame.time_base) * 50) for frame in frames] == list(range(len(codes)))
    assert not (out / "arrays").exists()
    # What LeRobot computes depths by.
    assert (feature["dtype"], feature["shape"]) == ("video", [height, width, 1])
    stated = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}
    wanted = {"is_depth_map": True, "depth_unit": unit, **{f"video.{name}": value for name, value in stated.items()}}
    assert {name: feature["info"][name] for name in wanted} == wanted


def test_statistics_are_those_of_the_depths_without_holes(depth_made):
    out, _, unit, codes = depth_made
    stats = read_json(out / "meta/stats.json")[DEPTH]
    depths, scale = depths_of_codes(unit)[codes], 1000 if unit == "mm" else 1
    assert np.shape(stats["mean"]) == (1, 1, 1)
    assert stats["mean"][0][0][0] == pytest.approx(depths[depths > 0.02 * scale].mean(), rel=0.05)  # of every 4th image
    assert stats["min"][0][0][0] == pytest.approx(0.3 * scale, rel=0.05)
    (episodes,) = out.glob("meta/episodes/*/*.parquet")
    assert f"stats/{DEPTH}/mean" in parquet.read_table(episodes).column_names


@pytest.mark.parametrize(
    ("size", "unit", "message"),
    [
        *(((h, w), "mm", f"depth: .*16x16 pixels at least, images have {h}x{w} .*use") for h, w in TOO_SMALL),
        ((16, 16), "", r"streams\.depth\.unit: '' is not one of mm, m, which .*; give mm for"),
        ((16, 16), "mm", ""),  # the smallest size
    ],
)
def test_depth_images_that_are_too_small_or_of_unknown_unit_are_refused(size, unit, message, tmp_path):
    bag = depth_recording(tmp_path, "16UC1", 1, size)
    with pytest.raises(RoboCacheError, match=message) if message else nullcontext():
        export([bag], depth_spec(unit), tmp_path / "out", DatasetOptions(depth="video"))


# Depth as 12-bit codes.


@pytest.mark.parametrize(
    ("metres", "code"),
    [
        *((0.01, 0), (10.0, 4095)),  # the ends of the range
        (1.0, 755),  # log(4.5 / 3.51) / log(13.5 / 3.51) of 4095
        *((0.0, 0), (0.005, 0), (12.0, 4095), (np.nan, 0), (np.inf, 4095), (-np.inf, 0)),  # outside of it, or missing
    ],
)
def test_depth_in_metres_and_millimetres(metres, code):
    assert depth_codes(np.array([[metres]], np.float32), "m").tolist() == [[code]]
    assert depth_codes(np.array([[metres * 1000]], np.float32), "mm").tolist() == [[code]]


@pytest.mark.parametrize(("unit", "per_metre"), [("mm", 1000), ("m", 1)])
def test_a_depth_comes_back_within_half_a_step(unit, per_metre):
    metres = np.arange(10, 10_001) / 1000
    error = np.abs(depths_of_codes(unit)[depth_codes(metres * per_metre, unit)] / per_metre - metres)
    assert (error <= 1.65e-4 * (metres + 3.5)).all()  # half of log(13.5 / 3.51) / 4095, and a rounding


def test_images_without_any_depth_have_the_statistics_of_the_first_code():
    codes = Histogram([[0] * 4096])
    codes.add_values(np.zeros((2, 2), np.uint16))
    assert np.ravel(depth_stats(codes, "m")["mean"]) == pytest.approx([0.01])
