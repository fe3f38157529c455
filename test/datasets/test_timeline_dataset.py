"""Episodes on one timeline: alignment, windows, mixtures, layouts, and formats of other packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from robocache_ros.datasets import (
    CALVINDataset,
    DatasetError,
    LeRobotTimelineDataset,
    RTXDataset,
    Stream,
    TimelineDataset,
    WeightedMixture,
    Window,
    open_dataset,
)
from robocache_ros.datasets.mixture import load_layout
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.read import ChainedEpisodes
from robocache_ros.formats.registry import READERS, known_readers
from test.datasets.small import InMemory, episode, loader_of, write_calvin, write_tfds
from test.shared import installed

HZ = 10
STEP_NS = 10**9 // HZ


def source(*lengths: int, skipped: int = 0, **changes: Stream) -> InMemory:
    """Episodes at 10 Hz: a state that counts, actions of -1 - state without the first ones, and other streams."""
    episodes = []
    for index, length in enumerate(lengths):
        stamps, first = np.arange(length) * STEP_NS, min(skipped, length - 1)
        rows = (100 * index + np.arange(length, dtype=np.float32))[:, None]
        actions = Stream("actions", stamps[first:], -1 - rows[first:], False, "action")
        streams = {"proprio": Stream("proprio", stamps, rows, False), "actions": actions}
        episodes.append(list((streams | changes).values()))
    return InMemory(*episodes)


def test_states_are_linear_and_actions_held():
    sample = TimelineDataset(source(3), target_hz=20)[0]
    assert sample["proprio"][:, 0].tolist() == [0, 0.5, 1, 1.5, 2]
    assert sample["actions"][:, 0].tolist() == [-1, -1, -2, -2, -3]
    assert sample["fused"].tolist() == [[0, -1], [0.5, -1], [1, -2], [1.5, -2], [2, -3]]
    assert sample["age_ms"].tolist() == [[0, 0], [50, 50], [0, 0], [50, 50], [0, 0]]


def test_the_age_of_samples_that_an_export_aligned_adds_to_their_own():
    stamps = np.arange(3, dtype=np.int64) * 100_000_000
    aligned = {"valid": np.array([1, 2, 1], np.uint8), "age_ns": np.array([3, 40, 0], np.int64) * 1_000_000}
    stream = Stream("proprio", stamps, np.zeros((3, 1), np.float32), False, align="hold", **aligned)
    sample = TimelineDataset(InMemory([stream]), target_hz=20)[0]
    assert sample["age_ms"].flatten().tolist() == [3, 53, 40, 90, 0]
    assert sample["valid"].flatten().tolist() == [1, 1, 2, 2, 1]


def test_alignments_are_chosen_by_role_or_name():
    sample = TimelineDataset(source(3), target_hz=20, align={"actions": "next", "proprio": "nearest"})[0]
    assert sample["proprio"][:, 0].tolist() == [0, 0, 1, 1, 2]
    assert sample["actions"][:, 0].tolist() == [-1, -2, -2, -3, -3]


def test_a_stream_that_begins_late_is_invalid_before():
    late = Stream("late", np.array([100_000_000, 200_000_000]), np.ones((2, 1), np.float32), True)
    sample = TimelineDataset(source(3, late=late), target_hz=10)[0]
    assert sample["valid"].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert sample["proprio"][:, 1].tolist() == [0, 1, 1]
    assert sample["measured"].tolist() == [False, False, True]


def measured(*stamps_ms: int) -> TimelineDataset:
    """An episode of one stream with these stamps."""
    stamps = np.array(stamps_ms) * 1_000_000
    return TimelineDataset(InMemory([Stream("proprio", stamps, np.zeros((len(stamps), 1), np.float32), True)]))


def test_measured_stamps_are_on_the_grid_of_the_epoch():
    assert measured(1005, 1015, 1045)[0]["tick_ns"].tolist() == [1_020_000_000, 1_040_000_000]


@pytest.mark.parametrize(
    ("stamps_ms", "problem"),
    [
        ((1005,), "0 s have 0 ticks at 50 Hz"),
        ((0, 40, 20), "proprio: its stamps do not rise"),
        ((0, 20, 20), "proprio: its stamps do not rise"),
    ],
)
def test_stamps_without_a_tick_or_an_order_are_refused(stamps_ms, problem):
    with pytest.raises(RoboCacheError, match=f"memory: 0: {problem}"):
        measured(*stamps_ms)[0]


def test_an_unknown_option_is_named_with_the_nearest_one():
    with pytest.raises(RoboCacheError, match=r"align: 'propio' is not one of .*, .*; did you mean 'proprio'"):
        TimelineDataset(source(3), align={"propio": "nearest"})[0]
    with pytest.raises(RoboCacheError, match=r"options: 'image_sizes' is not one of .*; did you mean 'image_size'"):
        LeRobotTimelineDataset("nowhere", image_sizes=(8, 8))
    with pytest.raises(RoboCacheError, match=r"options of lerobot: 'camera' is not one of .*; did you mean 'cameras'"):
        open_dataset("lerobot", "nowhere", camera=["front"])


def test_a_mixture_that_cannot_be_is_refused():
    a, b = (TimelineDataset(source(3), target_hz=hz) for hz in (20, 50))
    with pytest.raises(RoboCacheError, match=r"b: weight 0.0, 1 samples"):
        WeightedMixture({"b": b}, {"a": 1.0})
    with pytest.raises(RoboCacheError, match="ticks of different rates, a 20 Hz, b 50 Hz; open all with one target_hz"):
        WeightedMixture({"a": a, "b": b}, {"a": 1.0, "b": 1.0})
    layout = {"streams": {"a": {"dim": 1}}, "datasets": {"named": {}}}
    with pytest.raises(RoboCacheError, match=r"datasets\.other: not in the layout, which has named; add it"):
        WeightedMixture({"other": a}, {"other": 1.0}, layout=layout)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"target_hz": 29.97}, "target_hz: 29.97 .*choose one"),
        ({"target_hz": 0}, "target_hz: 0 .*choose one"),
        ({"modalities": ["touch"]}, "'touch' is not one of .*choose one"),
        ({"align": {"proprio": "cubic"}}, "align: 'cubic' is not one of"),
        *(
            ({"image_size": size}, "image_size: .* is not a height and a width from 1 to 16384 px")
            for size in ((0, 4), (4,), 224, (4.0, 4))
        ),
        (
            {"image_size": (4, 4), "image_resize": "cubic"},
            "image_resize: 'cubic' is not one of bilinear, nearest, area",
        ),
    ],
)
def test_an_option_that_cannot_be_is_named(options, problem):
    with pytest.raises(RoboCacheError, match=problem):
        TimelineDataset(source(3), **options)


def test_images_are_not_blended_and_an_index_is_in_its_range(tmp_path):
    dataset = RTXDataset(write_tfds(tmp_path / "d", [episode(3)]), align={"vision": "linear"})
    with pytest.raises(DatasetError, match="images are not linear; use hold, nearest or next"):
        dataset[0]
    with pytest.raises(IndexError):
        dataset[1]


def test_an_alignment_may_be_of_a_stream_of_another_episode():
    force = Stream("force", np.arange(3) * 20_000_000, np.zeros((3, 1), np.float32), True)
    both = ChainedEpisodes([source(3), source(3, force=force)])
    assert TimelineDataset(both, align={"force": "nearest"})[0]["length"]


def test_a_mixture_draws_by_weight_and_uses_every_sample_before_one_twice():
    parts = {"a": TimelineDataset(source(*[2] * 40)), "b": TimelineDataset(source(*[2] * 40))}
    mixture = WeightedMixture(parts, {"a": 3.0, "b": 1.0}, samples=400, seed=1)
    places = [mixture.place(k) for k in range(400)]
    of_a = [sample for dataset, sample in places if dataset == 0]
    assert 270 < len(of_a) < 330  # 300 +- 3.5 standard deviations
    assert sorted(of_a[:40]) == list(range(40))
    assert mixture[0]["dataset"] in parts


def test_the_order_of_a_mixture_follows_from_seed_and_epoch():
    parts = {"a": TimelineDataset(source(*[2] * 40))}
    orders = []
    for seed, epoch in ((1, 0), (1, 0), (1, 1), (2, 0)):
        mixture = WeightedMixture(parts, {"a": 1.0}, seed=seed)
        mixture.set_epoch(epoch)
        orders.append([mixture.place(k) for k in range(40)])
    assert orders[0] == orders[1]
    assert orders[0] != orders[2] != orders[3] != orders[0]


def test_a_mixture_is_drawn_anew_in_each_epoch_and_not_cached(caplog):
    parts = {name: TimelineDataset(source(*[3] * 5)) for name in ("a", "b")}
    mixture = WeightedMixture(parts, {"a": 3, "b": 1}, seed=1)
    loader = loader_of(mixture, 10)
    first, second = next(iter(loader))["dataset"], next(iter(loader))["dataset"]
    loader.set_epoch(0)
    assert first != second
    assert next(iter(loader))["dataset"] == first
    with pytest.raises(RoboCacheError, match="other items in each epoch"):
        loader_of(mixture, 2, cache="host")
    with caplog.at_level("INFO"):
        assert loader_of(mixture, 2, cache="auto").cache == "none"
    assert "cache: none, because the dataset has other items in each epoch" in caplog.text


# Windows against a plain-Python oracle: any lengths, rates, horizons and offsets.


def oracle(lengths: list[int], late: int, window: Window) -> list[dict[str, Any]]:
    """Every window, step by step."""
    found = []
    for index, length in enumerate(lengths):
        first = min(late, length - 1)
        for tick in range(length):
            observed = [tick - window.n_obs + 1 + k for k in range(window.n_obs)]
            acted = [tick + window.action_offset + k for k in range(window.horizon)]
            rows = [min(max(row, 0), length - 1) for row in observed]
            actions = [min(max(row, 0), length - 1) for row in acted]
            found.append(
                {
                    "proprio": [[100.0 * index + row] for row in rows],
                    "actions": [[-1.0 - 100 * index - row if row >= first else 0.0] for row in actions],
                    "is_pad": [not 0 <= row < length for row in observed],
                    "action_is_pad": [not 0 <= row < length for row in acted],
                    "valid": [[1, int(row >= first)] for row in rows],
                    "tick_ns": [row * STEP_NS for row in rows],
                    "language": f"task {index}",
                    "length": window.n_obs,
                }
            )
    return found


lengths = st.lists(st.integers(1, 6), min_size=1, max_size=4)
windows = st.builds(Window, st.integers(1, 5), st.integers(1, 5), st.integers(-7, 7))


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


@settings(max_examples=150, deadline=None)
@given(lengths=lengths, window=windows, late=st.integers(0, 3))
def test_every_window_is_that_of_the_oracle(lengths, window, late):
    dataset = TimelineDataset(source(*lengths, skipped=late), target_hz=HZ, window=window)
    wanted = oracle(lengths, late, window)
    assert len(dataset) == len(wanted) == sum(lengths)
    for index, expected in enumerate(wanted):
        sample = dataset[index]
        assert {key: plain(sample[key]) for key in expected} == expected


@settings(max_examples=40, deadline=None)
@given(lengths=lengths, window=windows, batch_size=st.integers(1, 7), seed=st.integers(0, 2**40), cached=st.booleans())
def test_batches_have_every_window_once(lengths, window, batch_size, seed, cached):
    dataset = TimelineDataset(source(*lengths), target_hz=HZ, window=window)
    wanted = oracle(lengths, 0, window)
    loader = loader_of(dataset, batch_size, shuffle=True, seed=seed, cache="host" if cached else "none")
    seen = []
    for batch in loader:
        for row, index in enumerate(batch["index"].tolist()):
            expected = {key: value for key, value in wanted[index].items() if key != "tick_ns"}
            assert {key: plain(batch[key][row]) for key in expected} == expected
            seen.append(index)
    assert sorted(seen) == list(range(len(wanted)))


@settings(max_examples=60, deadline=None)
@given(
    lengths=lengths,
    ticks=st.integers(1, 5),
    stride=st.integers(1, 4),
    ranks=st.integers(1, 3),
    batch_size=st.integers(1, 4),
)
@example(lengths=[6, 6, 1], ticks=1, stride=1, ranks=3, batch_size=2)  # one rank has a sample more
def test_windows_of_the_loader_are_complete_parts_that_ranks_share(lengths, ticks, stride, ranks, batch_size):
    wanted = [(index, start) for index, length in enumerate(lengths) for start in range(0, length - ticks + 1, stride)]
    assume(wanted and len(wanted) // ranks >= -(-len(wanted) // (ranks * batch_size)))  # else it is refused
    dataset = TimelineDataset(source(*lengths), target_hz=HZ)
    seen, shares = [], []
    for rank in range(ranks):
        options = {"windows": (ticks, stride), "rank": rank, "world_size": ranks}
        shares.append(list(loader_of(dataset, batch_size, shuffle=True, **options)))
        for batch in shares[-1]:
            assert 0 < len(batch["proprio"]) <= batch_size
            assert batch["proprio"].shape[1:] == (ticks, 1)
            for values in batch["proprio"][:, :, 0].tolist():
                index, start = divmod(int(values[0]), 100)
                assert values == [100 * index + start + k for k in range(ticks)]
                seen.append((index, start))
    assert sorted(seen) == wanted
    assert len({len(share) for share in shares}) == 1  # a rank with a batch more would wait for the others for ever


# Datasets with different columns in one layout.

LAYOUT = """
streams:
  ee_position: {dim: 2, align: linear}
  gripper: {dim: 1}
  primary: {image_size: [4, 4]}
  delta: {dim: 2, role: action}
  gripper_action: {dim: 1, role: action}
datasets:
  named:
    ee_position: {from: proprio, columns: [y, x]}
    delta: {from: actions, columns: [0, 1], scale: [1, -2], offset: 0.5}
    gripper_action: {from: actions, columns: 2}
  calvin:
    ee_position: {from: proprio, columns: [0, 1]}
    gripper: {from: proprio, columns: [14]}
    primary: vision/static
    delta: {from: actions, columns: [0, 1]}
    gripper_action: {from: actions, columns: [6]}
"""


def named_columns() -> InMemory:
    """An episode of four steps at 50 Hz without a camera, whose columns have names."""
    stamps, steps = np.arange(4) * 20_000_000, np.arange(4, dtype=np.float32)
    position = np.stack([steps, 10 * steps, 100 * steps], axis=1)
    action = np.stack([steps, steps + 1, steps + 2], axis=1)
    return source(
        4,
        proprio=Stream("proprio", stamps, position, False, columns=("x", "y", "z")),
        actions=Stream("actions", stamps, action, False, "action"),
    )


@pytest.fixture
def mixture(tmp_path) -> WeightedMixture:
    (tmp_path / "layout.yaml").write_text(LAYOUT)
    window = Window(n_obs=2, horizon=2)
    datasets = {
        "named": TimelineDataset(named_columns(), window=window),
        "calvin": CALVINDataset(write_calvin(tmp_path / "training"), window=window),
    }
    return WeightedMixture(datasets, {"named": 1, "calvin": 1}, layout=tmp_path / "layout.yaml", samples=40)


def test_samples_of_all_datasets_have_one_layout(mixture):
    samples = [mixture[index] for index in range(len(mixture))]
    assert {sample["dataset"] for sample in samples} == {"named", "calvin"}
    shapes = {tuple((k, v.shape) for k, v in sample.items() if isinstance(v, torch.Tensor)) for sample in samples}
    assert len(shapes) == 1
    assert samples[0]["proprio"].shape == (2, 3)
    assert samples[0]["actions"].shape == (2, 3)
    assert samples[0]["vision"].shape == (2, 1, 4, 4, 3)
    names = ("ee_position", "gripper", "vision/primary", "delta", "gripper_action")
    assert mixture.datasets[0].stream_names() == names


def test_columns_are_chosen_by_name_or_index_and_scaled(mixture):
    sample = mixture.datasets[0][2]
    assert sample["proprio"].tolist() == [[10, 1, 0], [20, 2, 0]]
    assert sample["actions"].tolist() == [[2.5, -5.5, 4], [3.5, -7.5, 5]]


def test_a_stream_that_a_dataset_lacks_is_never_valid(mixture):
    named, calvin = mixture.datasets[0][2], mixture.datasets[1][2]
    assert named["valid"][:, 1:3].unique().tolist() == [0]  # the gripper and the camera
    assert named["valid"][:, [0, 3, 4]].all()
    assert not named["vision"].any()
    assert calvin["valid"].all()


def test_absent_columns_are_not_normalised(mixture):
    statistics = {"proprio": {"mean": [0.0, 0.0, 5.0], "std": [1.0, 1.0, 2.0]}}
    (batch,) = loader_of(mixture, 40, statistics=statistics)
    named = torch.tensor([name == "named" for name in batch["dataset"]])
    assert not batch["proprio"][named][:, :, 2].any()
    assert batch["proprio"][~named][:, :, 2].min() >= (14 - 5) / 2


def test_the_image_size_of_the_layout_replaces_that_of_a_dataset(tmp_path):
    write_calvin(tmp_path / "training")
    layout = {"streams": {"primary": {"image_size": [6, 8]}}, "datasets": {"calvin": {"primary": "vision/static"}}}
    own, stored = (
        WeightedMixture({"calvin": CALVINDataset(tmp_path / "training", image_size=size)}, {"calvin": 1}, layout=layout)
        for size in ((16, 16), None)
    )
    assert own[0]["vision"].shape[-3:] == (6, 8, 3)
    assert torch.equal(own[0]["vision"], stored[0]["vision"])


@pytest.mark.parametrize(
    ("origin", "problem"),
    [
        ({"from": "nothing"}, "memory: 0: nothing: no such stream; there are proprio, actions"),
        ({"from": "proprio"}, "3 columns, and the layout has 1; give columns"),
        ({"from": "proprio", "columns": [3]}, "no column 3, it has 3"),
        ({"from": "proprio", "columns": ["w"]}, "no column w; its names are x, y, z"),
        ({"from": "actions", "columns": ["x"]}, "no column x; its names are none; use an index"),
    ],
)
def test_columns_that_a_dataset_lacks_are_named(origin, problem):
    layout = {"streams": {"a": {"dim": 1}}, "datasets": {"named": {"a": origin}}}
    mixture = WeightedMixture({"named": TimelineDataset(named_columns())}, {"named": 1.0}, layout=layout)
    with pytest.raises(DatasetError, match=problem):
        mixture[0]


@pytest.mark.parametrize(
    ("stream", "origins", "problem"),
    [
        ({}, {}, r"streams\.a: give either dim, from 1 to 4096, or image_size"),
        ({"dims": 1}, {}, r"streams\.a\.dims: no such key; did you mean 'dim'"),
        ({"dim": 1, "role": "x"}, {}, r"streams\.a\.role: 'x' is not one of observation"),
        ({"dim": 1, "align": "x"}, {}, r"streams\.a\.align: 'x' is not one of angle"),
        ({"dim": 1}, {"b": "c"}, r"datasets\.d\.b: not a stream of the layout"),
        ({"dim": 1}, {"a": {}}, r"datasets\.d\.a\.from: missing; give the name"),
        ({"dim": 1}, {"a": {"from": "c", "columns": [0, 1]}}, r"d\.a\.columns: give 1 indices from 0 on, or names"),
        ({"dim": 2}, {"a": {"from": "c", "scale": [1, 2, 3]}}, r"datasets\.d\.a\.scale: 3 numbers for 2 columns"),
    ],
)
def test_what_is_wrong_in_a_layout_is_named(stream, origins, problem):
    with pytest.raises(RoboCacheError, match=problem):
        load_layout({"streams": {"a": stream}, "datasets": {"d": origins}})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("streams: {}", "datasets: missing; give it"),
        ("streams: {}\ndatasets: {}", "streams: expected up to 1,024 streams by name, got a mapping"),
        ("streams:\n  a: [", r"layout\.yaml:2:7: not valid YAML"),
        (
            "streams:\n  a: {dim: 1}\ndatasets:\n  d: {a: {from: b, scale: x}}",
            r"layout\.yaml:4:20: .*scale: 'x' is not",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_place(tmp_path, text, problem):
    (tmp_path / "layout.yaml").write_text(text)
    with pytest.raises(RoboCacheError, match=problem):
        load_layout(tmp_path / "layout.yaml")


# Dataset formats of other packages, found through their entry points.

ENTRY_POINTS = """[robocache_ros.datasets]
one = one_episode_format:OneEpisode
empty = pathlib:PurePath
broken = one_episode_format:NoSuchClass
number = math:pi
text = builtins:str

[robocache_ros.formats]
written = one_episode_format:WRITTEN
"""


@pytest.fixture
def other_package(tmp_path, monkeypatch) -> None:
    module = Path(__file__).with_name("one_episode_format.py")
    monkeypatch.syspath_prepend(installed(tmp_path / "site", module, ENTRY_POINTS))


@pytest.mark.usefixtures("other_package")
def test_a_format_of_another_package_is_read(tmp_path):
    sample = open_dataset("one", tmp_path, target_hz=20.0, steps=3)[0]
    assert sample["proprio"][:, 0].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert sample["language"] == "lift"
    assert len(open_dataset("written", tmp_path)) == 1  # a format that is written brings its reader
    assert known_readers() == (*READERS, "broken", "empty", "number", "one", "text", "written")


@pytest.mark.usefixtures("other_package")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("broken", "format: broken of one_episode_format:NoSuchClass cannot be imported"),
        ("empty", "format: empty returns PurePosixPath, not an EpisodeSource; reinstall it"),
        ("number", r"format: number is 3\.14\d*, which opens no dataset; reinstall it"),
        ("text", "format: text is <class 'str'>, which opens no dataset; reinstall it"),
        ("two", r"format: 'two' is not one of lerobot, .*mcap.* hdf5, .*one"),
    ],
)
def test_a_format_that_cannot_be_used_is_named(name, problem, tmp_path):
    with pytest.raises(DatasetError, match=problem):
        open_dataset(name, tmp_path)
