"""CALVIN, as its recorder and its annotator write it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robocache_ros.datasets import CALVINDataset, DatasetError
from robocache_ros.formats.calvin import load_arrays
from test.datasets.conftest import write_calvin

ANNOTATIONS = {
    "language": {
        "ann": ["open the drawer", "push the block"],
        "task": ["open_drawer", "push_block"],
        "emb": np.zeros((2, 1, 384), np.float32),
    },
    "info": {"episodes": [], "indx": [(101, 103), (107, 111)]},
}


class RunsCode:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_states_are_blended_and_images_held_at_50_hz(tmp_path: Path) -> None:
    write_calvin(tmp_path / "training")
    sample = CALVINDataset(tmp_path)[0]
    assert sample["length"] == 9  # 5 / 30 s
    assert sample["proprio"][1, 0].item() == pytest.approx(0.6)  # 20 ms of 33.3 ms
    assert sample["vision/static"][:4, 0, 0, 0].tolist() == [0, 0, 1, 1]


def test_an_unknown_task_is_refused(tmp_path: Path) -> None:
    write_calvin(tmp_path / "training", annotations=ANNOTATIONS)
    with pytest.raises(DatasetError, match=r"no fly .*; there are open_drawer, push_block"):
        CALVINDataset(tmp_path, tasks=["fly"])


def test_annotations_that_would_run_code_are_refused(tmp_path: Path) -> None:
    write_calvin(tmp_path / "training", annotations=np.array({"language": RunsCode(tmp_path / "ran")}, object))
    with pytest.raises(
        DatasetError, match=r"refused .it contains pathlib.*touch|refused .it contains builtins.getattr"
    ):
        CALVINDataset(tmp_path)
    assert not (tmp_path / "ran").exists()


class Reduced:
    """Pickled as a call, and then a state that is set."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


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
def test_annotations_with_more_than_plain_values_are_refused(ranges: Any, reason: str, tmp_path: Path) -> None:
    folder = write_calvin(tmp_path / "training", annotations=ANNOTATIONS)
    reported = {**ANNOTATIONS, "info": {"indx": ranges}}
    np.save(folder / "lang_annotations" / "auto_lang_ann.npy", np.array(reported, object), allow_pickle=True)
    with pytest.raises(DatasetError, match=f"refused .*{reason}"):
        CALVINDataset(tmp_path)


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_annotations_that_any_numpy_saved_are_read(module: str, tmp_path: Path) -> None:
    folder = write_calvin(tmp_path / "training", annotations=ANNOTATIONS)
    numbers = np.array([[101, 103], [107, 111]])
    reported = {
        "language": {**ANNOTATIONS["language"], "task": np.array(["open_drawer", "push_block"], object)},
        "info": {"episodes": [], "indx": [tuple(row) for row in numbers]},  # numbers of NumPy
    }
    data, here = pickle.dumps(np.array(reported, object), protocol=3), np.zeros(1).__reduce__()[0].__module__
    assert f"c{here}\n".encode() in data
    with (folder / "lang_annotations" / "auto_lang_ann.npy").open("wb") as file:  # as np.save does it
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
        file.write(data.replace(f"c{here}\n".encode(), f"c{module}\n".encode()))
    dataset = CALVINDataset(tmp_path, target_hz=30)
    assert [dataset[k]["language"] for k in range(len(dataset))] == ["open the drawer", "push the block"]
    assert [dataset[k]["length"] for k in range(len(dataset))] == [3, 5]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_of_arrays_are_read(protocol: int, tmp_path: Path) -> None:
    value = {"a": np.arange(3), "b": [np.float32(1.5), "text", None, (1, 2.5, b"bytes")]}
    (tmp_path / "p").write_bytes(pickle.dumps(value, protocol=protocol))
    read = load_arrays(tmp_path / "p")
    assert np.array_equal(read["a"], value["a"])
    assert read["b"] == value["b"]


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"cos\nsystem\n(S'true'\ntR.", b"\x93NUMPY\x01\x00\xff\xff"])
def test_damaged_and_hostile_pickles_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(data)
    with pytest.raises(DatasetError, match="refused"):
        load_arrays(tmp_path / "p")


def test_a_camera_that_is_not_rgb_is_refused(tmp_path: Path) -> None:
    write_calvin(tmp_path / "training")
    with pytest.raises(DatasetError, match=r"rgb_tactile: .*not an 8-bit RGB image"):
        CALVINDataset(tmp_path, cameras=["tactile"])[0]


def test_cameras_of_one_size_are_one_tensor(tmp_path: Path) -> None:
    write_calvin(tmp_path / "training")
    sample = CALVINDataset(tmp_path / "training", cameras=["static"], target_hz=30)[0]
    assert sample["vision"].shape == (6, 1, 20, 20, 3)
    assert torch.equal(sample["vision"][:, 0, 0, 0, 0], torch.arange(6, dtype=torch.uint8))


# Splits written with NumPy as CALVIN's recorder and its annotator write them, read value by value.

LENGTHS = (9, 5, 1)
TASKS = ("open_drawer", "lift_red_block_table", "open_drawer")
TEXTS = ("pull the handle", "lift the red block", "open the drawer")
RANGES = ((2, 6), (9, 12), (14, 14))


@pytest.fixture(scope="module")
def steps() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "actions": rng.normal(size=7),
            "rel_actions": rng.uniform(-1, 1, 7),
            "robot_obs": rng.normal(size=15),
            "scene_obs": rng.normal(size=24),
            "rgb_static": rng.integers(0, 256, (200, 200, 3), np.uint8),
            "rgb_gripper": rng.integers(0, 256, (84, 84, 3), np.uint8),
            "rgb_tactile": rng.integers(0, 256, (160, 120, 6), np.uint8),
            "depth_static": rng.random((200, 200), np.float32),
            "depth_gripper": rng.random((84, 84), np.float32),
            "depth_tactile": rng.random((160, 120, 2), np.float32),
        }
        for _ in range(sum(LENGTHS))
    ]


@pytest.fixture(scope="module")
def split(steps: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calvin") / "training"
    (folder / "lang_annotations").mkdir(parents=True)
    for counter, arrays in enumerate(steps):
        np.savez_compressed(folder / f"episode_{counter:07d}.npz", **arrays)
    np.save(folder / "ep_lens.npy", np.array(LENGTHS))
    last = np.cumsum(LENGTHS) - 1
    first = [0, *list(last + 1)[:-1]]
    np.save(folder / "ep_start_end_ids.npy", list(zip(first, last, strict=True)))
    np.save(folder / "scene_info.npy", {"calvin_scene_D": [0, sum(LENGTHS) - 1]}, allow_pickle=True)
    embeddings = np.random.default_rng(1).normal(size=(3, 1, 384)).astype(np.float32)
    indices = [(np.int64(first), np.int64(last)) for first, last in RANGES]
    reported: Any = {
        "language": {"ann": list(TEXTS), "task": list(TASKS), "emb": embeddings},
        "info": {"episodes": [], "indx": indices},
    }
    np.save(folder / "lang_annotations" / "auto_lang_ann.npy", reported)
    return folder


def assert_same(sample: dict[str, Any], steps: list[dict[str, Any]], actions: str) -> None:
    assert np.array_equal(sample["proprio"], np.stack([step["robot_obs"] for step in steps]).astype(np.float32))
    assert np.array_equal(sample["actions"], np.stack([step[actions] for step in steps]).astype(np.float32))
    for camera in ("static", "gripper"):
        assert np.array_equal(sample[f"vision/{camera}"], np.stack([step[f"rgb_{camera}"] for step in steps])), camera


def test_every_value_of_the_annotated_ranges_is_the_written_one(split: Path, steps: list[dict[str, Any]]) -> None:
    dataset = CALVINDataset(split.parent, target_hz=30)
    assert len(dataset) == len(RANGES)
    for index, (first, last) in enumerate(RANGES):
        sample = dataset[index]
        assert_same(sample, steps[first : last + 1], "rel_actions")
        assert sample["language"] == TEXTS[index]


def test_every_value_of_the_recordings_is_the_written_one(split: Path, steps: list[dict[str, Any]]) -> None:
    dataset = CALVINDataset(split, tasks=[], actions="actions", target_hz=30)
    ends = np.cumsum(LENGTHS)
    assert len(dataset) == len(LENGTHS)
    for index, (end, length) in enumerate(zip(ends, LENGTHS, strict=True)):
        assert_same(dataset[index], steps[end - length : end], "actions")


def test_a_task_selects_its_ranges(split: Path) -> None:
    dataset = CALVINDataset(split, tasks=["open_drawer"], cameras=[], target_hz=30)
    assert [dataset[index]["language"] for index in range(len(dataset))] == ["pull the handle", "open the drawer"]
