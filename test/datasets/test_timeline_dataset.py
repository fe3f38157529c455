from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from robocache_ros.datasets import (
    DatasetError,
    LeRobotTimelineDataset,
    RTXDataset,
    SourceEpisode,
    Stream,
    TimelineDataset,
    WeightedMixture,
    Window,
    open_dataset,
)
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.read import ChainedEpisodes
from test.datasets.conftest import STEPS, episode, write_tfds


class Source:
    """Episodes in memory: a state of one number and an action, at 10 Hz."""

    def __init__(self, *lengths: int, **changes: Any) -> None:
        self.lengths, self.changes = lengths, changes

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, index: int) -> SourceEpisode:
        stamps = np.arange(self.lengths[index]) * 100_000_000
        rows = np.arange(len(stamps), dtype=np.float32)[:, None]
        streams = [Stream("proprio", stamps, rows, False), Stream("actions", stamps, 10 * rows, False, "action")]
        return SourceEpisode({s.name: s for s in streams} | self.changes, "task", "memory", f"memory: {index}")

    def span_ns(self, index: int) -> tuple[int, int]:
        return self.read(index).span_ns()


def test_states_are_linear_and_actions_held() -> None:
    sample = TimelineDataset(Source(3), target_hz=20)[0]

    assert sample["proprio"][:, 0].tolist() == [0, 0.5, 1, 1.5, 2]
    assert sample["actions"][:, 0].tolist() == [0, 0, 10, 10, 20]
    assert sample["age_ms"].tolist() == [[0, 0], [50, 50], [0, 0], [50, 50], [0, 0]]


def test_alignments_are_chosen_by_role_or_name() -> None:
    sample = TimelineDataset(Source(3), target_hz=20, align={"actions": "next", "proprio": "nearest"})[0]

    assert sample["proprio"][:, 0].tolist() == [0, 0, 1, 1, 2]
    assert sample["actions"][:, 0].tolist() == [0, 10, 10, 20, 20]


def test_fused_has_all_columns_in_the_order_of_the_streams() -> None:
    sample = TimelineDataset(Source(3), target_hz=10)[0]

    assert sample["fused"].tolist() == [[0, 0], [1, 10], [2, 20]]


def test_windows_have_observations_before_and_actions_after_their_tick() -> None:
    dataset = TimelineDataset(Source(5, 3), target_hz=10, window=Window(n_obs=2, horizon=3, action_offset=1))

    sample = dataset[2]

    assert len(dataset) == 8
    assert sample["proprio"][:, 0].tolist() == [1, 2]
    assert sample["actions"][:, 0].tolist() == [30, 40, 40]
    assert sample["is_pad"].tolist() == [False, False]
    assert sample["action_is_pad"].tolist() == [False, False, True]


def test_windows_repeat_the_ends_of_an_episode_and_mark_it() -> None:
    dataset = TimelineDataset(Source(5, 3), target_hz=10, window=Window(n_obs=3, horizon=2))

    sample = dataset[5]

    assert dataset.place(5) == (1, 0)
    assert sample["proprio"][:, 0].tolist() == [0, 0, 0]
    assert sample["is_pad"].tolist() == [True, True, False]
    assert sample["actions"][:, 0].tolist() == [0, 10]


def test_a_stream_that_begins_late_is_invalid_before() -> None:
    late = Stream("late", np.array([100_000_000, 200_000_000]), np.ones((2, 1), np.float32), True)

    sample = TimelineDataset(Source(3, late=late), target_hz=10)[0]

    assert sample["valid"].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert sample["proprio"][:, 1].tolist() == [0, 1, 1]
    assert sample["measured"].tolist() == [False, False, True]


def test_measured_stamps_are_on_the_grid_of_the_epoch() -> None:
    stamps = np.array([1_005_000_000, 1_015_000_000, 1_045_000_000])
    only = Stream("proprio", stamps, np.arange(3, dtype=np.float32)[:, None], True)
    source = Source(1)
    source.read = lambda index: SourceEpisode({"proprio": only}, "", "m", "m")  # type: ignore[method-assign]

    assert TimelineDataset(source)[0]["tick_ns"].tolist() == [1_020_000_000, 1_040_000_000]


def test_an_episode_between_two_ticks_is_refused() -> None:
    only = Stream("proprio", np.array([1_005_000_000]), np.zeros((1, 1), np.float32), True)
    source = Source(1)
    source.read = lambda index: SourceEpisode({"proprio": only}, "", "m", "m: 0")  # type: ignore[method-assign]

    with pytest.raises(DatasetError, match="m: 0: 0 s have 0 ticks at 50 Hz"):
        TimelineDataset(source)[0]


@pytest.mark.parametrize("stamps", [[0, 2, 1], [0, 1, 1]])
def test_stamps_that_do_not_rise_are_refused(stamps: list[int]) -> None:
    bad = Stream("bad", np.array(stamps), np.zeros((3, 1), np.float32), True)

    with pytest.raises(DatasetError, match="memory: 0: bad: its stamps do not rise"):
        TimelineDataset(Source(3, bad=bad))[0]


@pytest.mark.parametrize("options", [{"target_hz": 29.97}, {"target_hz": 0}, {"modalities": ["touch"]}])
def test_wrong_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RoboCacheError, match="choose one"):
        TimelineDataset(Source(3), **options)


def test_an_unknown_alignment_is_refused() -> None:
    with pytest.raises(RoboCacheError, match="align: 'cubic' is not one of"):
        TimelineDataset(Source(3), align={"proprio": "cubic"})


def test_an_alignment_of_no_stream_is_refused(tmp_path: Path) -> None:
    dataset = RTXDataset(write_tfds(tmp_path / "d", STEPS, [episode(3)]), align={"visions": "nearest"})

    with pytest.raises(RoboCacheError, match=r"align: 'visions' is not one of vision, .*; did you mean 'vision'"):
        dataset[0]


def test_an_alignment_may_be_of_a_stream_of_another_episode() -> None:
    force = Stream("force", np.arange(3) * 20_000_000, np.zeros((3, 1), np.float32), True)
    both = ChainedEpisodes([Source(3), Source(3, force=force)])

    assert TimelineDataset(both, align={"force": "nearest"})[0]["length"]


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RoboCacheError, match=r"options: 'image_sizes' is not one of .*; did you mean 'image_size'"):
        LeRobotTimelineDataset("nowhere", image_sizes=(8, 8))
    with pytest.raises(RoboCacheError, match=r"options of lerobot: 'camera' is not one of .*; did you mean 'cameras'"):
        open_dataset("lerobot", "nowhere", camera=["front"])


def test_images_are_not_blended(tmp_path: Path) -> None:
    dataset = RTXDataset(write_tfds(tmp_path / "d", STEPS, [episode(3)]), align={"vision": "linear"})

    with pytest.raises(DatasetError, match="images are not linear; use hold, nearest or next"):
        dataset[0]


def test_it_works_in_a_data_loader_with_workers(tmp_path: Path) -> None:
    dataset = RTXDataset(write_tfds(tmp_path / "d", STEPS, [episode(3, 10.0 * k) for k in range(4)]), window=Window(2))

    loader = DataLoader(dataset, batch_size=21, num_workers=2)
    batches = list(loader)

    assert [len(batch["proprio"]) for batch in batches] == [21] * 4
    assert torch.equal(batches[3]["fused"][-1], dataset[83]["fused"])


def test_an_index_out_of_range_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        TimelineDataset(Source(3))[1]


def test_a_mixture_draws_by_weight_and_uses_every_sample_before_one_twice() -> None:
    parts = {"a": TimelineDataset(Source(*[2] * 40)), "b": TimelineDataset(Source(*[2] * 40))}

    mixture = WeightedMixture(parts, {"a": 3.0, "b": 1.0}, samples=400, seed=1)
    places = [mixture.place(k) for k in range(400)]

    of_a = [sample for dataset, sample in places if dataset == 0]
    assert 270 < len(of_a) < 330  # 300 +- 3.5 standard deviations
    assert sorted(of_a[:40]) == list(range(40))
    assert mixture[0]["dataset"] in parts


def test_the_order_of_a_mixture_follows_from_seed_and_epoch() -> None:
    parts = {"a": TimelineDataset(Source(*[2] * 40))}
    orders = []
    for seed, epoch in ((1, 0), (1, 0), (1, 1), (2, 0)):
        mixture = WeightedMixture(parts, {"a": 1.0}, seed=seed)
        mixture.set_epoch(epoch)
        orders.append([mixture.place(k) for k in range(40)])

    assert orders[0] == orders[1]
    assert orders[0] != orders[2] != orders[3] != orders[0]


def test_a_mixture_without_a_weight_is_refused() -> None:
    with pytest.raises(RoboCacheError, match=r"b: weight 0.0, 1 samples"):
        WeightedMixture({"b": TimelineDataset(Source(3))}, {"a": 1.0})


def test_a_mixture_of_different_rates_is_refused() -> None:
    parts = {name: TimelineDataset(Source(3), target_hz=rate) for name, rate in (("a", 20), ("b", 50))}
    with pytest.raises(
        RoboCacheError, match=r"ticks of different rates, a 20 Hz, b 50 Hz; open all with one target_hz"
    ):
        WeightedMixture(parts, {"a": 1.0, "b": 1.0})
