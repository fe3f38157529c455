"""Recordings of video: their pictures are those that a decoder gives in the order of the messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import yaml

from robocache_ros.bags.describe import describe
from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.suggest.first_spec import suggest_spec
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export, export_together, outputs_of
from robocache_ros.exporter.planned_recording import Moment, PlannedRecording
from robocache_ros.formats.validate import validate
from robocache_ros.spec import VIDEO_TYPES, FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.decode.video_messages import COMPRESSED_VIDEO, HEIGHT, WIDTH, compressed_video, packets, pictures
from test.export.conftest import dry_run

START_NS = 1_700_000_000_000_000_000
COUNT, FIRST_KEY = 40, 10


@pytest.fixture(scope="session")
def video_spec() -> FusionSpec:
    front = {"topic": "/camera", "type": VIDEO_TYPES[0], "align": "hold", "max_age_ms": 100}
    front["image"] = {"size": [HEIGHT, WIDTH]}
    joint = {"topic": "/x", "type": "std_msgs/msg/Float64", "align": "hold", "stamp": "receive", "max_age_ms": 100}
    return load_spec({"robocache": 1, "rate_hz": 30, "actions": "none", "streams": {"front": front, "x": joint}})


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A camera at 30 Hz; the recording begins within a group of pictures, whose key frame it does not have."""
    messages = []
    for k, packet in enumerate(packets(pictures(COUNT), gop=FIRST_KEY)):
        at = START_NS + k * 33_333_333
        messages.append(("/x", at, b"\0\1\0\0" + np.float64(k).tobytes()))
        if k:
            messages.append(("/camera", at, compressed_video(at, packet)))
    types = {"/camera": VIDEO_TYPES[0], "/x": "std_msgs/msg/Float64"}
    definitions = {VIDEO_TYPES[0]: COMPRESSED_VIDEO}
    return write_bag(tmp_path_factory.mktemp("video") / "bag", types, messages, definitions=definitions)


def test_each_tick_has_the_picture_of_its_message(recorded: Path, video_spec: FusionSpec) -> None:
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


def test_datasets_of_two_rates_have_the_bytes_of_separate_ones(
    recorded: Path, video_spec: FusionSpec, tmp_path: Path
) -> None:
    options = DatasetOptions(media="image")
    outputs = outputs_of([("v", video_spec)], [30, 10], options)
    for output, result in zip(outputs, export_together([recorded], outputs, tmp_path / "sets"), strict=True):
        separate = export([recorded], video_spec, tmp_path / "alone" / output.name, output.options)
        files = [path.relative_to(separate.out) for path in separate.out.rglob("*") if path.is_file()]
        assert result.frames > 5
        assert all((result.out / file).read_bytes() == (separate.out / file).read_bytes() for file in files)


def test_a_part_of_a_recording_of_video_is_refused(recorded: Path, video_spec: FusionSpec, tmp_path: Path) -> None:
    part = PlannedRecording(recorded, start=Moment(500_000_000, relative=True))
    with pytest.raises(RoboCacheError, match="from and to are not for video, the type of front; export the whole"):
        export([part], video_spec, tmp_path / "out")


def test_a_dry_run_shows_the_frames_without_an_estimate(recorded: Path, video_spec: FusionSpec, tmp_path: Path) -> None:
    run = dry_run([PlannedRecording(recorded)], video_spec, tmp_path / "out")
    assert run.frames == export([recorded], video_spec, tmp_path / "out").frames > 20
    assert run.estimate is None


def test_the_first_spec_has_the_video_and_can_be_exported(recorded: Path, tmp_path: Path) -> None:
    found = load_spec(yaml.safe_load(suggest_spec(describe(recorded))))
    assert [stream.type for stream in found.media] == [VIDEO_TYPES[0]]
    made = export([recorded], replace(found, actions="none"), tmp_path / "set")
    assert made.frames > COUNT - FIRST_KEY


@pytest.fixture
def on_the_grid(tmp_path: Path) -> Path:
    return grid_recording(tmp_path, "libx264", "h264")


def grid_recording(tmp_path: Path, encoder: str, codec: str) -> Path:
    """A camera whose messages are at the ticks of 30 Hz, with key frames; joints too."""
    first, messages = START_NS * 30 // 10**9 + 1, []
    for k, packet in enumerate(packets(pictures(COUNT), encoder, gop=FIRST_KEY)):
        at = (first + k) * 10**9 // 30
        messages.append(("/camera", at, compressed_video(at, packet, codec)))
        messages.append(("/x", at, b"\0\1\0\0" + np.float64(k).tobytes()))
    types, definitions = {"/camera": VIDEO_TYPES[0], "/x": "std_msgs/msg/Float64"}, {VIDEO_TYPES[0]: COMPRESSED_VIDEO}
    return write_bag(tmp_path / "grid", types, messages, definitions=definitions)


@pytest.mark.parametrize(
    ("format_", "encoder", "codec", "decoder"),
    [
        ("lerobot", "libx264", "h264", "h264"),
        ("lerobot21", "libx264", "h264", "h264"),
        ("lerobot", "libx265", "h265", "hevc"),
    ],
)
def test_packets_on_the_grid_are_copied(
    video_spec: FusionSpec, tmp_path: Path, format_: str, encoder: str, codec: str, decoder: str
) -> None:
    recording = grid_recording(tmp_path, encoder, codec)
    out = export([recording], video_spec, tmp_path / "set", DatasetOptions(formats=(format_,), codec="copy")).out
    (video,) = out.rglob("*.mp4")
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.average_rate) == (decoder, 30)
        copied = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    with Bag(recording) as bag:
        decoded = np.concatenate([part.media["front"].numpy() for part in BagRun(bag, video_spec).frames()])
    assert np.array_equal(np.stack(copied), decoded.transpose(0, 2, 3, 1))
    assert [finding for one in validate(out, decode=True) for finding in one.found] == []


def test_packets_off_the_grid_are_not_copied(on_the_grid: Path, video_spec: FusionSpec, tmp_path: Path) -> None:
    with pytest.raises(
        RoboCacheError, match=r"front: row 1 of an episode does not use the message after that of row 0"
    ):
        export([on_the_grid], replace(video_spec, rate_hz=60), tmp_path / "set", DatasetOptions(codec="copy"))


def test_resized_pictures_are_not_copied(on_the_grid: Path, video_spec: FusionSpec, tmp_path: Path) -> None:
    raw = video_spec.to_dict()
    raw["streams"]["front"]["image"] = {"size": [HEIGHT // 2, WIDTH // 2]}
    with pytest.raises(
        RoboCacheError, match=r"front: images of \d+x\d+ are resized from \d+x\d+; leave image.size out"
    ):
        export([on_the_grid], load_spec(raw), tmp_path / "set", DatasetOptions(codec="copy"))


def test_copying_needs_a_video_topic(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    with pytest.raises(RoboCacheError, match="codec: copy needs a video topic"):
        export(bags[:1], spec, tmp_path / "set", DatasetOptions(codec="copy"))
