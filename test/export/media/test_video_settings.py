"""Quality, speed and key frames of videos."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av", reason="needs the `export` extra")

import av

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.video import JoinedVideo, VideoFile, VideoSettings, encoder_of
from robocache_ros.spec.dataset import DatasetOptions

ROOT = Path(__file__).parents[3]
SIZE = (64, 96)


def written(path: Path, settings: VideoSettings, codec: str = "h264", frames: int = 12) -> Path:
    rng = np.random.default_rng(0)
    video = VideoFile(path, SIZE, 30, codec, settings)
    scene = rng.integers(0, 240, (*SIZE, 3), dtype=np.uint8)  # one scene, because x264 begins others with a key frame
    for _ in range(frames):
        video.write((scene + rng.integers(0, 8, scene.shape, dtype=np.uint8)).transpose(2, 0, 1))
    video.close()
    return path


def test_settings_apply_to_the_codec_that_has_them() -> None:
    settings = VideoSettings(crf=60, preset="slow", gop=5)
    h264 = settings.applied(encoder_of(SIZE, "h264")).options
    assert (h264["crf"], h264["preset"], h264["g"]) == ("51", "slow", "5")

    if "libsvtav1" in av.codecs_available:  # older PyAV encodes h264 instead
        av1 = settings.applied(encoder_of(SIZE, "av1")).options
        assert (av1["crf"], av1["preset"], av1["g"]) == ("60", "12", "5")


def test_gop_is_the_distance_of_key_frames(tmp_path: Path) -> None:
    with av.open(str(written(tmp_path / "video.mp4", VideoSettings(gop=5)))) as video:
        keys = [packet.is_keyframe for packet in video.demux(video=0) if packet.dts is not None]
    assert [number for number, key in enumerate(keys) if key] == [0, 5, 10]


def test_videos_with_b_frames_are_joined_whatever_their_lengths(tmp_path: Path) -> None:
    lengths, settings, row = (30, 1, 2, 3, 1, 13), VideoSettings(crf=10, preset="medium", gop=12), 0
    joined = JoinedVideo(tmp_path, "joined.mp4", 30, 100, 10)
    for number, length in enumerate(lengths):
        video = VideoFile(tmp_path / f"{number}.mp4", SIZE, 30, "h264", settings)
        for level in range(row, row + length):
            video.write(np.full((3, *SIZE), 4 * level, np.uint8))
        video.close()
        assert joined.append(video.path, length) == (0, 0, row)
        row += length
    joined.close()

    with av.open(str(tmp_path / "joined.mp4")) as container:
        frames = list(container.decode(video=0))
        container.seek(0)
        times = [packet.pts for packet in container.demux(video=0) if packet.pts is not None]
    assert times != sorted(times)  # there are B-frames
    assert [round(30 * frame.time) for frame in frames] == list(range(row))
    levels = [frame.to_ndarray(format="rgb24").mean() / 4 for frame in frames]
    assert [round(level) for level in levels] == list(range(row))  # the loss is below half a level


def test_lower_crf_is_larger(tmp_path: Path) -> None:
    sizes = [written(tmp_path / f"{crf}.mp4", VideoSettings(crf=crf)).stat().st_size for crf in (10, 40)]
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize("codec", ["h264", "av1"])
@pytest.mark.timeout(60)
def test_the_same_frames_give_the_same_bytes(tmp_path: Path, codec: str) -> None:
    one, other = (written(tmp_path / f"{k}.mp4", VideoSettings(), codec).read_bytes() for k in range(2))
    assert one == other


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


def test_h264_does_not_depend_on_the_contents_of_unused_memory(tmp_path: Path) -> None:
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
    ],
)
def test_settings_that_no_encoder_has_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(RoboCacheError, match=message.replace(".", r"\.")):
        DatasetOptions(**options)  # type: ignore[arg-type]


def test_an_encoder_that_loses_a_frame_fails_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mux = VideoFile._mux
    monkeypatch.setattr(VideoFile, "_mux", lambda self, packets: mux(self, packets[1:]))
    with pytest.raises(RoboCacheError, match="of 12 frames; use another codec"):
        written(tmp_path / "video.mp4", VideoSettings())


def test_a_video_without_a_frame_for_each_row_is_not_joined(tmp_path: Path) -> None:
    video = written(tmp_path / "video.mp4", VideoSettings())
    joined = JoinedVideo(tmp_path / "set", "{chunk_index}-{file_index}.mp4", 30, 100, 10)
    with pytest.raises(RoboCacheError, match="has 12 frames for 13 rows"):
        joined.append(video, 13)
    joined.close()
