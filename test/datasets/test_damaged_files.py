"""Damaged files: each error names the file, and other episodes are still read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from robocache_ros.datasets import DatasetError, RTXDataset, TimelineLoader, Window, open_dataset
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.validate import validate
from test.datasets.small import STEPS, episode, write_tfds
from test.export.planted_faults import (
    ZARR,
    at,
    change_column,
    change_lines,
    index,
    info,
    remove,
    rlds_info,
    setter,
)
from test.fuzz.datasets import DAMAGED, FORMATS

# Faults in one episode, for each format: named and counted, and the other episode is unchanged.

Fault = Callable[[Path], object]
V3 = "data/chunk-000/file-000.parquet"
VIDEO = "videos/observation.images.front/chunk-000/episode_000001.mp4"


def flip(name: str, share: float) -> Fault:
    def fault(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[int(len(data) * share)] ^= 0xFF
        (folder / name).write_bytes(data)

    return fault


def cut(name: str) -> Fault:
    return lambda folder: [os.truncate(path, path.stat().st_size - 100) for path in folder.glob(name)]


def change_demo(key: str, row: int, value: float) -> Fault:
    def fault(folder: Path) -> None:
        with h5py.File(folder / "lift.hdf5", "a") as file:
            file[f"data/demo_1/{key}"][row] = value

    return fault


def change_step(step: int, key: str, value: float) -> Fault:
    def fault(folder: Path) -> None:
        path = folder / f"episode_{step:07d}.npz"
        arrays = dict(np.load(path))
        arrays[key][0] = value
        np.savez(path, **arrays)

    return fault


def cut_image(values: list[Any]) -> None:
    values[STEPS + 3]["bytes"] = values[STEPS + 3]["bytes"][:-40]


RECORDS = "bridge-train.tfrecord-00000-of-00001"
FAULTS: list[tuple[str, Fault, str]] = [
    ("RLDS", flip(RECORDS, 0.75), r"record 1: its checksum is wrong"),
    ("RLDS", cut(RECORDS), r"record 1: the file is damaged or ends before it"),
    ("RLDS, gzip", cut(RECORDS), r"record 1.*gzip"),
    ("robomimic", change_demo("obs/state", 2, np.nan), r"demo_1: state: row 2, column 0 is not finite"),
    ("robomimic", change_demo("actions", 0, np.inf), r"demo_1: actions: row 0, column 0 is not finite"),
    (
        "LeRobot v3.0, images",
        change_column(V3, "observation.state", at((STEPS + 2, 1), np.nan)),
        r"row 2, column 1 is not finite",
    ),
    ("LeRobot v3.0, images", change_column(V3, "observation.images.front", cut_image), r"episode 1: .*image 3: .*png"),
    ("LeRobot v2.1, video", remove(VIDEO), r"episode_000001.mp4: not there"),
    ("LeRobot v2.1, video", cut(VIDEO), r"episode_000001.mp4"),
    ("LeRobot v2.1, video", remove("data/chunk-000/episode_000001.parquet"), r"episode_000001.parquet: not there"),
    ("LeRobot v2.1, video", cut("data/chunk-000/episode_000001.parquet"), r"episode_000001.parquet: damaged"),
    ("CALVIN", cut("episode_0000008.npz"), r"episode_0000008.npz: damaged"),
    ("CALVIN", remove("episode_0000008.npz"), r"episode_0000008.npz: not there"),
    ("CALVIN", flip("episode_0000008.npz", 0.1), r"episode_0000008.npz"),
    ("CALVIN", change_step(8, "robot_obs", np.nan), r"robot_obs: row 2, column 0 is not finite"),
]


@pytest.mark.parametrize(("name", "fault", "message"), FAULTS, ids=[f"{n}: {m}" for n, _, m in FAULTS])
def test_a_fault_is_named_and_counted_and_the_other_episode_is_unchanged(
    name: str, fault: Fault, message: str, tmp_path: Path
) -> None:
    write, opener, _ = FORMATS[name]
    write(tmp_path / "good")
    write(tmp_path / "bad")
    fault(tmp_path / "bad")
    with pytest.raises(RoboCacheError, match=f"sample 1: .*{message}"):
        list(TimelineLoader(opener(tmp_path / "bad"), 1))
    skipping = TimelineLoader(opener(tmp_path / "bad"), 2, on_error="skip")
    (batch,) = list(skipping)
    expected = next(iter(TimelineLoader(opener(tmp_path / "good"), 1)))
    assert (skipping.skipped, list(skipping.skipped_samples)) == (1, [1])
    assert batch.keys() == expected.keys()
    for key, value in expected.items():
        assert batch[key] == value if isinstance(value, list) else batch[key].equal(value), key


@pytest.mark.parametrize(("name", "file"), [("robomimic", "lift.hdf5"), ("HDF5", "own.hdf5")])
def test_a_truncated_hdf5_file_is_named_when_it_is_opened(name: str, file: str, tmp_path: Path) -> None:
    write, opener, _ = DAMAGED[name]
    write(tmp_path / "bad")
    cut(file)(tmp_path / "bad")
    with pytest.raises(DatasetError, match=f"{file}: it ends early"):
        opener(tmp_path / "bad")


def test_a_missing_shard_is_skipped_also_where_windows_are_counted(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", [episode(3), episode(3, 10.0)], shards=2)
    complete = RTXDataset(folder, target_hz=5, window=Window(2))
    wanted = [complete[k]["proprio"] for k in range(3, 6)]
    (folder / "bridge-train.tfrecord-00000-of-00002").unlink()
    with pytest.raises(DatasetError, match="00000-of-00002: not there"):
        TimelineLoader(RTXDataset(folder, target_hz=5, window=Window(2)), 3)
    loader = TimelineLoader(RTXDataset(folder, target_hz=5, window=Window(2)), 3, on_error="skip", workers=1)
    (batch,) = list(loader)
    assert [row.equal(each) for row, each in zip(batch["proprio"], wanted, strict=True)] == [True] * 3
    assert loader.skipped == 1
    assert "00000-of-00002: not there" in loader.skipped_samples[0]


def test_a_dataset_without_samples_is_refused(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", [])
    with pytest.raises(RoboCacheError, match="dataset: it has no samples; check its path"):
        TimelineLoader(RTXDataset(folder), 2)


def test_features_that_are_not_listed_are_stated(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", [episode(3)])
    path = folder / "features.json"
    path.write_text(path.read_text().replace('"language_instruction"', '"language_instruktion"'))
    with pytest.warns(UserWarning, match=r"features.json: does not list steps/language_instruction"):
        RTXDataset(folder)[0]


def test_features_of_different_numbers_of_steps_are_refused(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", [episode(4)])
    path = folder / "features.json"
    path.write_text(path.read_text().replace('{"dimensions": ["2"]}', '{"dimensions": ["1"]}'))
    with pytest.raises(DatasetError, match=r"record 0: .*4.*8.*get features.json again|8 steps of .*observation/state"):
        RTXDataset(folder)[0]


def test_a_task_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    write, opener, _ = FORMATS["LeRobot v2.1, video"]
    write(tmp_path / "d")
    (tmp_path / "d" / "meta" / "tasks.jsonl").write_text(json.dumps({"task_index": 1, "task": "push"}))
    with pytest.raises(DatasetError, match="episode 0: task 0 is not in the list of tasks"):
        opener(tmp_path / "d")[0]


# Damaged files of exports: the error of the loader names the file, also what `validate` finds.

SHARD = "train-000000.tar"
ENDS = f"{ZARR}/meta/episode_ends/.zarray"
MCAP = "episode_000001/episode_000001.mcap"
INF = float("inf")


def overwrite(name: str, at: int, data: bytes) -> Fault:
    def fault(folder: Path) -> None:
        with (folder / name).open("r+b") as file:
            file.seek(at)
            file.write(data)

    return fault


def other_shape(folder: Path) -> None:
    """Change 23 to 9999 in the header of the first array, so that the rest of the header follows."""
    data = (folder / SHARD).read_bytes()
    at = data.index(b"'shape': (", data.index(b"state.npy")) + len("'shape': (")
    overwrite(SHARD, at, b"9999")(folder)


def in_lines(name: str, **changes: object) -> Fault:
    return change_lines(name, lambda lines: [line.update(changes) for line in lines])


def remove_first(pattern: str) -> Fault:
    return lambda folder: next(folder.glob(pattern)).unlink()


def replace_log(text: str) -> Fault:
    return lambda folder: [path.write_text(text) for path in folder.glob("ticks/_delta_log/*.json")]


# What is damaged; what the loader says; what `validate` finds, if it is another text.
EXPORTS: list[tuple[str, Fault, str, str]] = [
    ("webdataset", lambda folder: os.truncate(folder / SHARD, 5000), r"\.tar: damaged \(it ends within", SHARD),
    ("webdataset", overwrite(SHARD, 3, b"\0x\0"), r"train-000000\.tar: damaged \(bad checksum", SHARD),
    ("webdataset", other_shape, r"episode 0: state\.npy: damaged", "state.npy"),
    ("webdataset", index("shards", 0, "episodes", 1),
     r"dataset\.json: 2 episodes, but the shards have others", "episodes of train-000000.tar is 1"),
    ("diffusion_policy", overwrite(f"{ZARR}/data/gripper/0.0", 0, b"nonsense"), r"gripper/0\.0: damaged", "damaged"),
    *(
        ("diffusion_policy", remove(f"{ZARR}/data/{name}"), f"{name}: not there; get the file", name.partition("/")[0])
        for name in ("action/0.0", "robocache.valid/0.0", "robocache.tick_ns/0", "front/7.0.0.0")
    ),
    ("diffusion_policy", setter(f"{ZARR}/data/gripper/.zarray")("shape", 0, lambda rows: rows - 1),
     r"data/gripper does not have \d+ rows", "rows; the episodes have"),
    ("diffusion_policy", setter(ENDS)("shape", [9_000_000]), "episode_ends/1: not there", "ends/1: not there"),
    ("mcap", overwrite(MCAP, 3000, b"nonsense" * 4), r"episode_000001\.mcap: ", "episode_000001"),
    ("mcap", remove(MCAP), r"episode_000001\.mcap: not there", "episode_000001"),
    ("lerobot", remove("meta/robocache.json"), r"meta/robocache\.json: not there", "meta/robocache.json: is missing"),
    ("lerobot", info("total_episodes", 3),
     "meta has 2 of 3 episodes; get the folder meta again", "total_episodes is 3"),
    ("lerobot21", remove("meta/robocache.json"), r"meta/robocache\.json: not there", "meta/robocache.json: is missing"),
    ("lerobot21", info("chunks_size", 0), "chunks_size is 0", "chunks_size"),
    ("lerobot21", info("chunks_size", INF), "cannot convert float infinity", "is inf"),
    ("lerobot21", in_lines("meta/episodes.jsonl", episode_index=INF), "cannot convert float infinity", "is inf"),
    ("lerobot21", in_lines("meta/tasks.jsonl", task_index=INF), "cannot convert float", "task_index is not 0"),
    ("rlds", rlds_info("splits", 0, "shardLengths", ["-1"]), "a file of -1", "says -1"),
    ("delta", remove_first("ticks/*/*.parquet"), r"\.parquet: not there", "is missing"),
    ("delta", remove_first("appends/*/images/front/*/*.parquet"), r"file-000\.parquet: not there", "is missing"),
    ("delta", cut("appends/*/images/front/*/*.parquet"), r"file-000\.parquet: damaged", "file-000.parquet: damaged"),
    ("delta", replace_log("nonsense"), "Json error", "Json error"),
    ("delta", replace_log(""), "No table metadata", "No table metadata"),
]  # fmt: skip


@pytest.fixture
def copied(exported: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of an export of one format, to damage, without checksums."""

    def made(name: str) -> Path:
        if name == "delta":
            pytest.importorskip("deltalake")
        return Path(shutil.copytree(exported("image") / name, tmp_path / name, ignore=lambda *_: ["SHA256SUMS"]))

    return made


def read_all(name: str, folder: Path) -> list[Any]:
    dataset = open_dataset(name, folder)
    return [dataset[index] for index in range(len(dataset))]


@pytest.mark.parametrize(
    ("name", "fault", "loader_says", "validate_says"), EXPORTS, ids=[f"{name}: {text}" for name, _, text, _ in EXPORTS]
)
def test_damage_to_an_export_is_one_line_of_the_loader_and_found_by_validate(
    name: str, fault: Fault, loader_says: str, validate_says: str, copied: Callable[[str], Path]
) -> None:
    folder = copied(name)
    fault(folder)
    with pytest.raises(RoboCacheError, match=loader_says) as refused:
        read_all(name, folder)
    assert str(refused.value).isprintable()
    assert any(validate_says in str(one) for one in validate(folder)[0].found)


@pytest.mark.parametrize("name", ["webdataset", "diffusion_policy", "mcap", "delta"])
def test_a_folder_without_an_export_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"cannot be read|not there|no Delta Lake dataset is read"):
        open_dataset(name, tmp_path)


def test_a_delta_log_without_statistics_is_read_and_stated_by_validate(copied: Callable[[str], Path]) -> None:
    folder = copied("delta")
    whole = [each["fused"] for each in read_all("delta", folder)]
    for path in folder.glob("ticks/_delta_log/*.json"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line.get("add", {}).pop("stats", None)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_all("delta", folder)
    assert [each["fused"].equal(other) for each, other in zip(found, whole, strict=True)] == [True, True]
    assert any("the log does not state which episodes are in it" in str(one) for one in validate(folder)[0].found)


def test_missing_files_of_voxels_are_named_and_not_read_as_zeros(copied: Callable[[str], Path]) -> None:
    folder = copied("lerobot")
    dataset = open_dataset("lerobot", folder, modalities=("voxels",))
    shutil.rmtree(folder / "arrays" / "voxels")
    with pytest.raises(DatasetError, match=r"arrays/voxels: no file has row 0 of episode 0"):
        dataset[0]
