"""Files that stay open between reads, in this process and in forked ones, and numbers that are not finite."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import numpy as np
import pytest
from torch.utils.data import DataLoader

from robocache_ros.datasets import (
    DatasetError,
    Hdf5Trajectories,
    Stream,
    TimelineDataset,
    WeightedMixture,
    Window,
    open_dataset,
    timeline_dataset,
)
from robocache_ros.datasets.timeline_dataset import EpisodeCache
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats import images
from robocache_ros.formats.images import VideoFrames
from robocache_ros.formats.read import all_finite, numbers
from test.datasets.small import STEPS, InMemory, loader_of, same, samples, write_hdf5, write_rlds, write_video

# Videos that stay open between reads.

FRAMES, FPS = 90, 30


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Path:
    """A video whose frames become brighter, with a key frame every 30 frames."""
    images = np.stack([np.full((32, 32, 3), 20 + 2 * index, np.uint8) for index in range(FRAMES)])
    return write_video(tmp_path_factory.mktemp("video") / "video.mp4", images, FPS, gop=30)


def frames_of(path: Path, count: int = FRAMES) -> VideoFrames:
    return VideoFrames(path.parent, path.name, 0.0, FPS, count)


@pytest.mark.parametrize(
    "reads",
    [[[0], [1], [2]], [[0, 1], [1, 2], [2, 3]], [[80], [3], [50], [49], [89], [89]], [[5, 60, 61], [0, 89]]],
    ids=str,
)
def test_frames_are_the_same_in_any_order_of_reads(video, reads):
    images._opened.cache_clear()
    frames, whole = frames_of(video), frames_of(video).frames(np.arange(FRAMES))
    images._opened.cache_clear()
    for rows in reads:
        assert np.array_equal(frames.frames(np.array(rows)), whole[rows])


def counted_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> Mock:
    """Counts the calls of a method of videos."""
    spy: Mock = create_autospec(getattr(images.OpenVideo, name), side_effect=getattr(images.OpenVideo, name))
    monkeypatch.setattr(images.OpenVideo, name, spy)
    return spy


def test_reads_of_neighbouring_frames_neither_open_nor_seek_again(video, monkeypatch):
    images._opened.cache_clear()
    seek = counted_calls(monkeypatch, "_seek")
    for row in range(20):
        frames_of(video).frames(np.array([row, row + 1, row + 2]))
    assert (seek.call_count, images._opened.cache_info().misses) == (1, 1)


@pytest.mark.parametrize(
    ("gop", "reads", "decoded"),
    [
        (30, [[30, 31, 32]], 3),  # from the key frame itself, not from the one before it
        (30, [[45]], 16),
        (30, [[10, 11], [20]], 21),  # a key frame is not nearer
        (2, [[0, 1, 2, 3], [20, 21]], 6),  # nor are the key frames between decoded
        (2, [[0, 1, 2], [4]], 5),
    ],
    ids=str,
)
def test_few_frames_are_decoded_that_nobody_wants(gop, reads, decoded, tmp_path, monkeypatch):
    path = write_video(tmp_path / "video.mp4", np.zeros((FRAMES, 32, 32, 3), np.uint8), FPS, gop=gop)
    following = counted_calls(monkeypatch, "_next")
    for rows in reads:
        frames_of(path).frames(np.array(rows))
    assert following.call_count == decoded


def test_a_file_that_was_replaced_is_opened_again(video, tmp_path):
    copy = tmp_path / "copy.mp4"
    copy.write_bytes(video.read_bytes())
    frames = frames_of(copy)
    frames.frames(np.array([0]))
    copy.write_bytes(b"not a video")
    with pytest.raises(DatasetError, match=r"copy\.mp4: damaged"):
        frames.frames(np.array([1]))


def test_a_row_without_a_frame_is_named_and_other_rows_can_be_read(video):
    frames = frames_of(video, 2 * FRAMES)
    with pytest.raises(DatasetError, match=r"no frame at 3\.333 s, row 100"):
        frames.frames(np.array([100]))
    assert frames.frames(np.array([3])).shape == (1, 32, 32, 3)


# Episodes in mapped files are read and checked once in each process.


@pytest.mark.parametrize(("storage", "reads"), [({}, 1), ({"compression": "gzip"}, 3)])
def test_a_mapped_episode_is_read_once_and_one_that_takes_memory_in_its_turn(storage, reads, tmp_path, monkeypatch):
    source = Hdf5Trajectories(write_hdf5(tmp_path, **storage))
    read = Mock(wraps=source.read)
    monkeypatch.setattr(source, "read", read)
    dataset = TimelineDataset(source, window=Window())
    for _ in range(3):
        for number in (0, STEPS):
            dataset.unaligned(number)
    assert Counter(call.args for call in read.call_args_list) == {(0,): reads, (1,): reads}


@pytest.mark.parametrize(
    ("limit", "same_file", "kept_ones"),
    [("MAX_EPISODES", True, [False, True, True]), ("MAX_FILES", False, [False, False, True])],
)
def test_kept_episodes_and_files_that_stay_open_are_limited(limit, same_file, kept_ones, tmp_path, monkeypatch):
    monkeypatch.setattr(timeline_dataset, limit, 2)
    kept, paths = EpisodeCache(), [write_hdf5(tmp_path / str(number)) for number in range(3)]
    for number in range(3):
        kept.put(number, Hdf5Trajectories(paths[0 if same_file else number]).read(number % 2))
    assert [kept.get(number) is not None for number in range(3)] == kept_ones


def test_each_window_of_an_episode_with_nan_is_refused():
    stamps, values = np.arange(4) * 20_000_000, np.zeros((2, 4, 1), np.float32)
    values[1, 3] = np.nan
    source = InMemory(*([Stream("joints", stamps, each, True)] for each in values))
    dataset = TimelineDataset(source, window=Window())
    loader = loader_of(dataset, 1, on_error="skip", align_on="device")
    assert [batch["index"].tolist() for batch in loader] == [[0], [1], [2], [3]]
    assert loader.skipped_samples == dict.fromkeys(
        range(4, 8), "joints: row 3, column 0 is not finite; repair the data, or use on_error='skip'"
    )
    with pytest.raises(RoboCacheError, match="sample 4: joints: row 3, column 0 is not finite"):
        list(loader_of(dataset, 1, align_on="device"))


def test_numbers_that_a_layout_scales_beyond_the_largest_are_refused(tmp_path):
    dataset = TimelineDataset(Hdf5Trajectories(write_hdf5(tmp_path)))
    origin = {"from": "joints", "scale": 3e38}
    layout = {"streams": {"joints": {"dim": 3}}, "datasets": {"d": {"joints": origin}}}
    mixture = WeightedMixture({"d": dataset}, {"d": 1}, layout=layout)
    refused = pytest.raises(RoboCacheError, match=r"joints: row \d, column \d is not finite")
    with np.errstate(over="ignore"), refused:
        list(loader_of(mixture, 1, align_on="device"))


# Numbers of datasets are checked for NaN and infinite values.


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 32_767, 32_768, 69_999])  # large arrays are checked in parts
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a_number_that_is_not_finite_is_found_wherever_it_is(value, place, dtype):
    values = np.ones((10_000, 7), dtype)
    values.reshape(-1)[place] = value
    assert not all_finite(values)
    with pytest.raises(DatasetError, match=f"file: row {place // 7}, column {place % 7} is not finite"):
        numbers(values, "file")


def test_large_numbers_are_finite_although_their_squares_are_not():
    for sign in (1, -1):
        assert all_finite(np.full((5000, 3), sign * np.finfo(np.float32).max))
    assert all_finite(np.zeros((0, 3), np.float32))


# Workers that are forked after their parent has read the dataset, as those of torch's DataLoader are.

SECONDS = 60  # after which a worker that hangs is an error


def assert_workers_read(dataset: TimelineDataset) -> None:
    """Compare what forked workers read with what the parent has read before."""
    wanted = samples(dataset)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=SECONDS)
    assert same(list(loader), wanted)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("name", ["lerobot", "lerobot21", "delta", "robomimic"])
def test_forked_workers_read_what_the_parent_has_read(name, exported):
    options: dict[str, Any] = {"obs_modality": "image"} if name == "robomimic" else {}
    assert_workers_read(open_dataset(name, exported("video") / name, **options))


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_forked_workers_read_a_compressed_file_that_the_parent_has_started(tmp_path):
    write_rlds(tmp_path / "d", compressed=True)
    assert_workers_read(open_dataset("rlds", tmp_path / "d"))


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_workers_forked_by_a_thread_read_videos(exported):
    dataset = open_dataset("lerobot", exported("video") / "lerobot")
    dataset[0]  # in this thread, whose decoder stays
    with ThreadPoolExecutor(1) as pool:
        pool.submit(assert_workers_read, dataset).result()
