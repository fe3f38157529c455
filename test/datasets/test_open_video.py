"""Videos that stay open between reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from robocache_ros.datasets import DatasetError
from robocache_ros.formats import images
from robocache_ros.formats.images import VideoFrames

FRAMES, FPS = 90, 30


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video whose frames become brighter, with a key frame every 30 frames."""
    path = tmp_path_factory.mktemp("video") / "video.mp4"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=FPS)
        stream.width = stream.height = 32
        stream.gop_size = 30
        for index in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 20 + 2 * index, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize(
    "reads",
    [[[0], [1], [2]], [[0, 1], [1, 2], [2, 3]], [[80], [3], [50], [49], [89], [89]], [[5, 60, 61], [0, 89]]],
    ids=str,
)
def test_frames_are_the_same_in_any_order_of_reads(video: Path, reads: list[list[int]]) -> None:
    images._opened.cache_clear()
    frames = VideoFrames(video.parent, video.name, 0.0, FPS, FRAMES)
    whole = VideoFrames(video.parent, video.name, 0.0, FPS, FRAMES).frames(np.arange(FRAMES))
    images._opened.cache_clear()

    for rows in reads:
        assert np.array_equal(frames.frames(np.array(rows)), whole[rows])


def test_reads_of_neighbouring_frames_neither_open_nor_seek_again(video: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images._opened.cache_clear()
    sought: list[float] = []
    plain = images.OpenVideo._seek
    monkeypatch.setattr(images.OpenVideo, "_seek", lambda self, time_s: sought.append(time_s) or plain(self, time_s))

    for row in range(20):
        VideoFrames(video.parent, video.name, 0.0, FPS, FRAMES).frames(np.array([row, row + 1, row + 2]))

    assert len(sought) == 1
    assert images._opened.cache_info().misses == 1


def test_a_file_that_was_replaced_is_opened_again(video: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.mp4"
    copy.write_bytes(video.read_bytes())
    frames = VideoFrames(copy.parent, copy.name, 0.0, FPS, FRAMES)
    frames.frames(np.array([0]))

    copy.write_bytes(b"not a video")

    with pytest.raises(DatasetError, match=r"copy\.mp4: damaged"):
        frames.frames(np.array([1]))


def test_a_row_without_a_frame_is_named_and_other_rows_can_be_read(video: Path) -> None:
    frames = VideoFrames(video.parent, video.name, 0.0, FPS, 2 * FRAMES)

    with pytest.raises(DatasetError, match=r"no frame at 3\.333 s, row 100"):
        frames.frames(np.array([100]))
    assert frames.frames(np.array([3])).shape == (1, 32, 32, 3)
