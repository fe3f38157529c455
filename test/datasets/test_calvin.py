"""CALVIN, as its recorder and its annotator write it, read value by value."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.datasets import CALVINDataset, DatasetError
from robocache_ros.formats.calvin import load_arrays
from test.datasets.small import calvin_step, write_annotations, write_calvin

LENGTHS = (9, 5, 1)
RANGES = ((2, 6), (9, 12), (14, 14))


@pytest.fixture
def split(tmp_path: Path) -> Path:
    return write_calvin(tmp_path / "training", LENGTHS, RANGES)


def assert_same(sample: dict[str, Any], first: int, last: int, actions: str) -> None:
    steps = [calvin_step(step) for step in range(first, last + 1)]
    for key, name in (("proprio", "robot_obs"), ("actions", actions)):
        assert np.array_equal(sample[key], np.stack([step[name] for step in steps]).astype(np.float32))
    for camera in ("static", "gripper"):
        assert np.array_equal(sample[f"vision/{camera}"], np.stack([step[f"rgb_{camera}"] for step in steps])), camera


def test_every_value_of_the_annotated_ranges_is_the_written_one(split: Path) -> None:
    dataset = CALVINDataset(split.parent, target_hz=30)
    assert len(dataset) == len(RANGES)
    for index, (first, last) in enumerate(RANGES):
        assert_same(dataset[index], first, last, "rel_actions")
    assert [dataset[k]["language"] for k in range(3)] == ["open drawer 0", "push block 1", "open drawer 2"]


def test_every_value_of_the_recordings_is_the_written_one(split: Path) -> None:
    dataset = CALVINDataset(split, tasks=[], actions="actions", target_hz=30)
    assert len(dataset) == len(LENGTHS)
    for index, (end, length) in enumerate(zip(np.cumsum(LENGTHS), LENGTHS, strict=True)):
        assert_same(dataset[index], end - length, end - 1, "actions")


def test_states_are_blended_and_images_held_at_50_hz(tmp_path: Path) -> None:
    sample = CALVINDataset(write_calvin(tmp_path / "training", LENGTHS, annotated=()))[1]
    assert sample["length"] == 7  # 4 / 30 s
    assert sample["proprio"][1, 0].item() == pytest.approx(9.6)  # 20 ms of 33.3 ms
    assert sample["vision/static"][:4, 0, 0, 0].tolist() == [9, 9, 10, 10]


def test_tasks_and_cameras_are_chosen(split: Path) -> None:
    dataset = CALVINDataset(split, tasks=["open_drawer"], cameras=["static"], target_hz=30)
    assert [dataset[index]["language"] for index in range(len(dataset))] == ["open drawer 0", "open drawer 2"]
    assert dataset[0]["vision"].shape == (5, 1, 20, 20, 3)  # one camera, or several of one size, are one tensor
    with pytest.raises(DatasetError, match=r"no fly .*; there are open_drawer, push_block"):
        CALVINDataset(split, tasks=["fly"])
    with pytest.raises(DatasetError, match=r"rgb_tactile: .*not an 8-bit RGB image"):
        CALVINDataset(split, cameras=["tactile"])[0]


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_annotations_that_any_numpy_saved_are_read(module: str, split: Path) -> None:
    ranges = [tuple(row) for row in np.array(RANGES)]  # numbers of NumPy
    write_annotations(split, ranges, task=np.array(["open_drawer", "push_block", "push_block"], object))
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


class RunsCode:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_annotations_that_would_run_code_are_refused(split: Path, tmp_path: Path) -> None:
    write_annotations(split, RunsCode(tmp_path / "ran"))
    reason = r"refused .it contains pathlib.*touch|refused .it contains builtins.getattr"
    with pytest.raises(DatasetError, match=reason):
        CALVINDataset(split)
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
    write_annotations(write_calvin(tmp_path / "training"), ranges)
    with pytest.raises(DatasetError, match=f"refused .*{reason}"):
        CALVINDataset(tmp_path)


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
