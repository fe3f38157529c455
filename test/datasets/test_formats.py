"""LeRobot, robomimic, trajectories of one's own in HDF5 files, and CALVIN, as their tools write them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch

from robocache_ros.datasets import (
    CALVINDataset,
    DatasetError,
    Hdf5Trajectories,
    LeRobotTimelineDataset,
    RoboMimicDataset,
    TimelineDataset,
    TimelineLoader,
    Window,
)
from robocache_ros.formats.calvin import load_arrays
from robocache_ros.formats.validate import validate
from test.datasets import small
from test.export.planted_faults import info

# LeRobot.

V3, V21 = "data/chunk-000/file-000.parquet", "data/chunk-000/episode_000000.parquet"


@pytest.fixture
def v21(tmp_path) -> Path:
    """A dataset of version 2.1, which has a file per episode: one of four steps and one of one, at 50 Hz."""
    return small.write_lerobot(tmp_path / "d", media="image", version="v2.1", lengths=(4, 1))


def test_a_dataset_of_version_2_1_has_its_values_at_nominal_stamps(v21):
    dataset = LeRobotTimelineDataset(v21, ["proprio", "language"])  # without vision, no image is read
    for sample, start, length in zip((dataset[0], dataset[1]), (0, 1), (4, 1), strict=True):
        expected = start + torch.arange(3 * length).view(length, 3) / 7
        assert sample["proprio"].equal(expected)
        assert sample["actions"].equal(-expected)
        assert sample["fused"].equal(torch.cat([expected, -expected], dim=1))
        assert sample["tick_ns"].tolist() == [20_000_000 * step for step in range(length)]
        assert not sample["measured"].any()
        assert sample["language"] == "lift"
        assert "vision" not in sample


@pytest.mark.parametrize("kind", ["lerobot", "lerobot21"])
def test_some_episodes_are_chosen_by_their_numbers(kind, exported):
    whole = LeRobotTimelineDataset(exported("none") / kind)
    chosen = LeRobotTimelineDataset(exported("none") / kind, episodes=[1])
    assert (len(whole), len(chosen)) == (2, 1)
    assert chosen[0]["tick_ns"].equal(whole[1]["tick_ns"])
    assert chosen[0]["fused"].equal(whole[1]["fused"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"episodes": [2]}, "episodes: 2 is not one of the 2 of this dataset"),
        ({"episodes": []}, "episodes: none, or one of them twice"),
        ({"episodes": [0, 0]}, "episodes: none, or one of them twice"),
        ({"cameras": ["wrist"]}, "cameras: no wrist; there are front"),
    ],
)
def test_episodes_and_cameras_that_a_dataset_lacks_are_refused(options, problem, v21):
    with pytest.raises(DatasetError, match=problem):
        LeRobotTimelineDataset(v21, **options)[0]


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("codebase_version", "v1.6", "version v1.6"),
        ("data_path", "{episode_index:0999999999d}.parquet", "not there"),  # a path that would fill the memory
    ],
)
def test_an_unknown_version_and_a_path_of_any_length_are_refused(key, value, problem, v21):
    info(key, value)(v21)
    with pytest.raises(DatasetError, match=problem):
        LeRobotTimelineDataset(v21)[0]


def test_an_episode_of_another_length_than_stated_is_refused(v21):
    parquet.write_table(parquet.read_table(v21 / V21).slice(0, 2), v21 / V21)
    with pytest.raises(DatasetError, match="episode 0: 2 rows, not 4"):
        LeRobotTimelineDataset(v21)[0]


def test_images_in_several_row_groups_are_read_and_checked(tmp_path):
    for name, rows in (("whole", 1000), ("parts", 4)):  # repeated images are dictionaries, one in each row group
        path = small.write_lerobot(tmp_path / name) / V3
        table = parquet.read_table(path)
        repeated = table.take([0, 1, 1, 1, 4, 4, *range(6, 12)])
        image = table.column_names.index("observation.images.front")
        table = table.set_column(image, table.schema.field(image), repeated.column(image))
        parquet.write_table(table, path, row_group_size=rows)
    whole, parts = (LeRobotTimelineDataset(tmp_path / name) for name in ("whole", "parts"))
    assert [parts[index]["vision"].equal(whole[index]["vision"]) for index in range(2)] == [True, True]
    found = [[str(one) for one in validate(tmp_path / name, decode=True)[0].found] for name in ("whole", "parts")]
    assert found[0] == found[1]
    assert not any("image" in one for one in found[1])


# robomimic.


def test_the_rate_is_that_of_the_file(tmp_path):
    path = small.write_robomimic(tmp_path, lengths=(5, 1), control_freq=10)
    with h5py.File(path, "a") as file:
        del file["data/demo_1/rewards"]
    first, second = RoboMimicDataset(path)[0], RoboMimicDataset(path)[1]
    assert (first["length"], second["length"]) == (21, 1)
    assert ("rewards" in first, "rewards" in second) == (True, False)


def test_tasks_are_files(tmp_path):
    for name in ("lift.hdf5", "can/ph/low_dim_v141.hdf5", "square/image.hdf5", "tool_hang_two_demos.hdf5"):
        small.write_robomimic(tmp_path, lengths=(1, 1), name=name)
    assert len(RoboMimicDataset(tmp_path, tasks=["lift", "can"])) == 4
    for task in ("square", "tool_hang"):  # the only file of a task is used whatever its name is
        assert len(RoboMimicDataset(tmp_path, tasks=[task])) == 2
    with pytest.raises(DatasetError, match="0 files of transport"):
        RoboMimicDataset(tmp_path, tasks=["transport"])


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ((3, 1), "demo_0: more: 3 values for 6 steps"),
        ((6, 10**11), "demo_0: more: 4,800,000,000,000 bytes"),  # takes no space in the file
    ],
)
def test_an_observation_of_another_length_or_a_huge_one_is_refused(shape, problem, tmp_path):
    path = small.write_robomimic(tmp_path)
    with h5py.File(path, "a") as file:
        file["data/demo_0/obs"].create_dataset("more", shape, "f8", chunks=(1, min(shape[1], 1024)))
    with pytest.raises(DatasetError, match=problem):
        RoboMimicDataset(path)[0]


LENGTHS = (6, 1, 4, *(1,) * 7, 3)


@pytest.mark.parametrize("compressed", [False, True])
def test_every_value_is_the_written_one(compressed, tmp_path):
    path = small.write_robomimic(tmp_path, compressed=compressed, lengths=LENGTHS)
    dataset = RoboMimicDataset(path, obs_modality="image", target_hz=20)
    assert len(dataset) == len(LENGTHS)
    for number, length in enumerate(LENGTHS):  # in the order of the numbers, with columns in that of the alphabet
        sample, demo = dataset[number], small.robomimic_demo(number, length)
        wanted = np.concatenate([demo["obs/gripper"], demo["obs/state"]], axis=1).astype(np.float32)
        assert np.array_equal(sample["proprio"], wanted)
        assert np.array_equal(sample["actions"], demo["actions"].astype(np.float32))
        assert np.array_equal(sample["rewards"], demo["rewards"].astype(np.float32))
        assert np.array_equal(sample["vision"][:, 0], demo["obs/front_image"])
        assert (sample["valid"] == 1).all()


def test_masks_select_demonstrations_in_the_order_of_their_numbers(tmp_path):
    masks = {"train": (0, 10, 2), "valid": (1,)}
    path = small.write_robomimic(tmp_path, lengths=LENGTHS, masks=masks)
    for mask, numbers in masks.items():
        dataset = RoboMimicDataset(path, mask=mask, target_hz=20)
        assert len(dataset) == len(numbers)
        for index, number in enumerate(sorted(numbers)):
            wanted = small.robomimic_demo(number, LENGTHS[number])["actions"].astype(np.float32)
            assert np.array_equal(dataset[index]["actions"], wanted)
    with pytest.raises(DatasetError, match=r"no test in .*; there are: train, valid"):
        RoboMimicDataset(path, mask="test")


def test_chosen_observations_have_the_order_in_which_they_were_chosen(tmp_path):
    sample = RoboMimicDataset(small.write_robomimic(tmp_path), obs_keys=["state", "gripper"], target_hz=20)[0]
    demo = small.robomimic_demo(0)
    wanted = np.concatenate([demo["obs/state"], demo["obs/gripper"]], axis=1).astype(np.float32)
    assert np.array_equal(sample["proprio"], wanted)


# Trajectories of one's own in HDF5 files.


@pytest.mark.parametrize("storage", [{}, {"compression": "gzip"}], ids=["one piece", "compressed"])
def test_streams_and_samples_have_the_values_and_stamps_of_the_file(tmp_path, storage):
    path = small.write_hdf5(tmp_path, **storage)
    with h5py.File(path, "a") as file:
        file["1"].attrs["task"] = "lift"
        file["1/notes"] = np.arange(3)
        file["1/joints/stamps_ns"][:] = np.arange(small.STEPS) * 10_000_000  # at another rate than the others
    source = pickle.loads(pickle.dumps(Hdf5Trajectories(path)))
    with h5py.File(path) as file:
        for index in range(small.EPISODES):
            episode = source.read(index)
            assert list(episode.streams) == ["actions", "vision/front", "joints"]
            for name, stream in episode.streams.items():
                stored = file[f"{index}/{name.rpartition('/')[2]}"]
                assert np.array_equal(stream.values, stored["values"][()])
                assert np.array_equal(stream.stamps_ns, stored["stamps_ns"][()])
    roles = {name: stream.role for name, stream in episode.streams.items()}
    assert (episode.task, roles["actions"], roles["joints"]) == ("lift", "action", "observation")
    assert source.span_ns(0) == (0, (small.STEPS - 1) * 20_000_000)
    sample = TimelineDataset(source)[0]
    assert sample["proprio"].shape == sample["actions"].shape == (small.STEPS, 3)
    assert bool(sample["measured"].all())


def test_stamps_may_be_seconds_and_streams_images(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["all/one/front/values"] = np.full((3, 4, 5, 3), 7, np.uint8)
        file["all/one/front/stamps_s"] = np.array([0.0, 0.1, 0.2])
    stream = Hdf5Trajectories(tmp_path / "a.hdf5", group="all").read(0).streams["vision/front"]
    assert stream.stamps_ns.tolist() == [0, 100_000_000, 200_000_000]
    assert stream.is_image


def test_roles_are_chosen_by_name(tmp_path):
    source = Hdf5Trajectories(small.write_hdf5(tmp_path), roles={"joints": "action"})
    assert source.read(0).streams["joints"].role == "action"


def test_values_of_a_mapped_file_can_be_changed_without_changing_it(tmp_path):
    path = small.write_hdf5(tmp_path)
    before = path.read_bytes()
    Hdf5Trajectories(path).read(0).streams["joints"].values[:] = 5  # type: ignore[index]
    assert path.read_bytes() == before


def test_a_group_without_streams_is_refused_by_its_name(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["run_0/joints"] = np.zeros((3, 2))
    with pytest.raises(DatasetError, match="run_0: no group in it has values and stamps_ns"):
        Hdf5Trajectories(tmp_path / "a.hdf5")


def test_windows_of_an_empty_trajectory_are_refused_and_the_others_read(tmp_path):
    with h5py.File(tmp_path / "own.hdf5", "w") as file:
        for name, steps in (("empty", 0), ("one", 3)):
            file[f"{name}/state/values"] = np.zeros((steps, 2), np.float32)
            file[f"{name}/state/stamps_ns"] = np.arange(steps) * 20_000_000
    dataset = TimelineDataset(Hdf5Trajectories(tmp_path / "own.hdf5"), window=Window())
    with pytest.raises(DatasetError, match="empty: 0 steps; leave the episode out"):
        len(dataset)
    loader = TimelineLoader(dataset, 3, on_error="skip")
    assert [batch["index"].tolist() for batch in loader] == [[0, 1, 2]]


# CALVIN, as its recorder and its annotator write it.

RECORDED = (9, 5, 1)
RANGES = ((2, 6), (9, 12), (14, 14))


@pytest.fixture
def split(tmp_path) -> Path:
    return small.write_calvin(tmp_path / "training", RECORDED, RANGES)


def assert_same(sample: dict[str, Any], first: int, last: int, actions: str) -> None:
    steps = [small.calvin_step(step) for step in range(first, last + 1)]
    for key, name in (("proprio", "robot_obs"), ("actions", actions)):
        assert np.array_equal(sample[key], np.stack([step[name] for step in steps]).astype(np.float32))
    for camera in ("static", "gripper"):
        assert np.array_equal(sample[f"vision/{camera}"], np.stack([step[f"rgb_{camera}"] for step in steps])), camera


def test_every_value_of_the_annotated_ranges_is_the_written_one(split):
    dataset = CALVINDataset(split.parent, target_hz=30)
    assert len(dataset) == len(RANGES)
    for index, (first, last) in enumerate(RANGES):
        assert_same(dataset[index], first, last, "rel_actions")
    assert [dataset[k]["language"] for k in range(3)] == ["open drawer 0", "push block 1", "open drawer 2"]


def test_every_value_of_the_recordings_is_the_written_one(split):
    dataset = CALVINDataset(split, tasks=[], actions="actions", target_hz=30)
    assert len(dataset) == len(RECORDED)
    for index, (end, length) in enumerate(zip(np.cumsum(RECORDED), RECORDED, strict=True)):
        assert_same(dataset[index], end - length, end - 1, "actions")


def test_states_are_blended_and_images_held_at_50_hz(tmp_path):
    sample = CALVINDataset(small.write_calvin(tmp_path / "training", RECORDED, annotated=()))[1]
    assert sample["length"] == 7  # 4 / 30 s
    assert sample["proprio"][1, 0].item() == pytest.approx(9.6)  # 20 ms of 33.3 ms
    assert sample["vision/static"][:4, 0, 0, 0].tolist() == [9, 9, 10, 10]


def test_tasks_and_cameras_are_chosen(split):
    dataset = CALVINDataset(split, tasks=["open_drawer"], cameras=["static"], target_hz=30)
    assert [dataset[index]["language"] for index in range(len(dataset))] == ["open drawer 0", "open drawer 2"]
    assert dataset[0]["vision"].shape == (5, 1, 20, 20, 3)  # one camera, or several of one size, are one tensor
    with pytest.raises(DatasetError, match=r"no fly .*; there are open_drawer, push_block"):
        CALVINDataset(split, tasks=["fly"])
    with pytest.raises(DatasetError, match=r"rgb_tactile: .*not an 8-bit RGB image"):
        CALVINDataset(split, cameras=["tactile"])[0]


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_annotations_that_any_numpy_saved_are_read(module, split):
    ranges = [tuple(row) for row in np.array(RANGES)]  # numbers of NumPy
    small.write_annotations(split, ranges, task=np.array(["open_drawer", "push_block", "push_block"], object))
    file = split / "lang_annotations" / "auto_lang_ann.npy"
    value = np.load(file, allow_pickle=True)
    data, here = pickle.dumps(value, protocol=3), np.zeros(1).__reduce__()[0].__module__
    assert f"c{here}\n".encode() in data
    with file.open("wb") as opened:  # as np.save does it
        np.lib.format.write_array_header_1_0(opened, {"descr": "|O", "fortran_order": False, "shape": ()})
        opened.write(data.replace(f"c{here}\n".encode(), f"c{module}\n".encode()))
    dataset = CALVINDataset(split, tasks=["push_block"], target_hz=30)
    assert [(dataset[k]["language"], dataset[k]["length"]) for k in range(2)] == [
        ("push block 1", 4),
        ("open drawer 2", 1),
    ]


# Annotations that would run code, or that have more than plain values.


class Reduced:
    """Pickled as a call, and then a state that is set."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def test_annotations_that_would_run_code_are_refused(split, tmp_path):
    small.write_annotations(split, Reduced(Path.touch, (tmp_path / "ran",)))
    reason = r"refused .it contains pathlib.*touch|refused .it contains builtins.getattr"
    with pytest.raises(DatasetError, match=reason):
        CALVINDataset(split)
    assert not (tmp_path / "ran").exists()


def object_dtype(*more: Any) -> Reduced:
    """A dtype of 8 bytes with a field of Python objects: arrays of it take their bytes for the addresses of objects."""
    return Reduced(np.dtype, ("V8", False, True), (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 63, *more))


def nested(levels: int, width: int) -> list[Any]:
    """Lists in lists; each has the next one several times, so that the pickle is small."""
    found: list[Any] = [1, 2]
    for _ in range(levels):
        found = [found] * width
    return found


def itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


RECONSTRUCT = np.zeros(1).__reduce__()[0]


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        (Reduced(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (2,), object_dtype(), False, bytes(16))), "dtype"),
        (Reduced(np.zeros(1)[0].__reduce__()[0], (object_dtype(), bytes(8))), "dtype"),
        (object_dtype(), "dtype"),
        (object_dtype({}), "dtype"),
        (Reduced(np.dtype, ("O8", False, True)), "a function or a dtype"),
        (Reduced(np.dtype, ([("a", "O")],)), "dtype"),
        (Reduced(np.ndarray, ((2,), np.dtype("f4"))), "calls numpy.ndarray"),
        (Reduced(RECONSTRUCT, (np.matrix, (0,), b"b")), "contains numpy.matrix"),
        (Reduced(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1000,), np.dtype("f8"), False, bytes(8))), "size"),
        (Reduced(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1,), np.dtype("O"), False, bytes(8))), "objects"),
        (np.ndarray, "a function or a dtype"),
        (nested(7, 10), "more than 5,000,000 values"),
        (nested(100, 1), "nested more than"),
        (itself(), "itself"),
        (1 << 70, "64 bits"),
        ({(1, 2): 3}, "keys are not text"),
    ],
)
def test_annotations_with_more_than_plain_values_are_refused(ranges, reason, tmp_path):
    small.write_annotations(small.write_calvin(tmp_path / "training"), ranges)
    with pytest.raises(DatasetError, match=f"refused .*{reason}"):
        CALVINDataset(tmp_path)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_of_arrays_are_read(protocol, tmp_path):
    value = {"a": np.arange(3), "b": [np.float32(1.5), "text", None, (1, 2.5, b"bytes")]}
    (tmp_path / "p").write_bytes(pickle.dumps(value, protocol=protocol))
    read = load_arrays(tmp_path / "p")
    assert np.array_equal(read["a"], value["a"])
    assert read["b"] == value["b"]


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"cos\nsystem\n(S'true'\ntR.", b"\x93NUMPY\x01\x00\xff\xff"])
def test_damaged_and_hostile_pickles_are_refused(data, tmp_path):
    (tmp_path / "p").write_bytes(data)
    with pytest.raises(DatasetError, match="refused"):
        load_arrays(tmp_path / "p")
