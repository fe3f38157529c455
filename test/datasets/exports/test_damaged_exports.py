"""Damaged files of exports: each error names the file, and other episodes are still read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.datasets import DatasetError, open_dataset
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.validate import validate

SHARD = "webdataset/train-000000.tar"
ZARR = "diffusion_policy/replay_buffer.zarr"
MCAP = "mcap/episode_000001/episode_000001.mcap"


@pytest.fixture
def copied(exported: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of an export of one format, to damage."""

    def made(name: str) -> Path:
        shutil.copytree(exported("image") / name, tmp_path / name)
        return tmp_path

    return made


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def read_all(name: str, folder: Path) -> None:
    dataset = open_dataset(name, folder / name)
    for index in range(len(dataset)):
        dataset[index]


@pytest.mark.parametrize("name", ["webdataset", "diffusion_policy", "mcap"])
def test_a_folder_without_an_export_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"cannot be read|not there"):
        open_dataset(name, tmp_path)


def test_a_missing_shard_is_named(copied: Callable[[str], Path]) -> None:
    folder = copied("webdataset")
    (folder / SHARD).unlink()

    with pytest.raises(DatasetError, match=r"train-000000\.tar: not there"):
        read_all("webdataset", folder)


def test_a_shard_that_ends_early_is_named(copied: Callable[[str], Path]) -> None:
    folder = copied("webdataset")
    with (folder / SHARD).open("r+b") as file:
        file.truncate(5000)

    with pytest.raises(DatasetError, match=r"train-000000\.tar: damaged \(it ends within"):
        read_all("webdataset", folder)


def test_a_damaged_header_in_a_shard_is_named(copied: Callable[[str], Path]) -> None:
    folder = copied("webdataset")
    overwrite(folder / SHARD, 3, b"\0x\0")

    with pytest.raises(DatasetError, match=r"train-000000\.tar: damaged \(bad checksum"):
        read_all("webdataset", folder)


def test_an_array_whose_header_states_another_size_is_named(copied: Callable[[str], Path]) -> None:
    folder = copied("webdataset")
    path = folder / SHARD
    at = path.read_bytes().index(b"'shape': (", path.read_bytes().index(b"state.npy")) + len("'shape': (")
    overwrite(path, at, b"9999")  # of 23,), so that the rest of the header follows

    with pytest.raises(DatasetError, match=r"episode 0: state\.npy: damaged"):
        read_all("webdataset", folder)


def test_shards_with_other_counts_than_the_episodes_are_refused(copied: Callable[[str], Path]) -> None:
    path = copied("webdataset") / "webdataset" / "dataset.json"
    reported = json.loads(path.read_text())
    reported["shards"][0]["episodes"] = 1
    path.write_text(json.dumps(reported))

    with pytest.raises(DatasetError, match=r"dataset\.json: 2 episodes, but the shards have others"):
        open_dataset("webdataset", path.parent)


def test_a_damaged_chunk_is_named(copied: Callable[[str], Path]) -> None:
    folder = copied("diffusion_policy")
    overwrite(folder / ZARR / "data" / "gripper" / "0.0", 0, b"nonsense")

    with pytest.raises(DatasetError, match=r"gripper/0\.0: damaged"):
        read_all("diffusion_policy", folder)


@pytest.mark.parametrize("name", ["action/0.0", "robocache.valid/0.0", "robocache.tick_ns/0", "front/7.0.0.0"])
def test_a_missing_chunk_is_named_and_not_read_as_zeros(name: str, copied: Callable[[str], Path]) -> None:
    folder = copied("diffusion_policy")
    (folder / ZARR / "data" / name).unlink()

    with pytest.raises(DatasetError, match=f"{name}: not there; get the file again"):
        read_all("diffusion_policy", folder)


def test_an_array_of_another_length_is_refused(copied: Callable[[str], Path]) -> None:
    folder = copied("diffusion_policy")
    path = folder / ZARR / "data" / "gripper" / ".zarray"
    reported = json.loads(path.read_text())
    reported["shape"][0] -= 1
    path.write_text(json.dumps(reported))

    with pytest.raises(DatasetError, match=r"data/gripper does not have \d+ rows"):
        open_dataset("diffusion_policy", folder / "diffusion_policy")


def test_a_damaged_recording_is_named_and_the_others_are_read(copied: Callable[[str], Path]) -> None:
    folder = copied("mcap")
    overwrite(folder / MCAP, 3000, b"nonsense" * 4)
    dataset = open_dataset("mcap", folder / "mcap")

    with pytest.raises(DatasetError, match=r"episode_000001\.mcap: "):
        dataset[1]
    assert dataset[0]["length"]


def test_a_missing_recording_is_named(copied: Callable[[str], Path]) -> None:
    folder = copied("mcap")
    dataset = open_dataset("mcap", folder / "mcap")
    (folder / MCAP).unlink()

    with pytest.raises(DatasetError, match=r"episode_000001\.mcap: .*get the file"):
        dataset[1]


def change(name: str, *keys: str | int, value: object) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        (path,) = folder.glob(name)
        reported = json.loads(path.read_text())
        inner = reported
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        path.write_text(json.dumps(reported))

    return changed


def change_lines(name: str, key: str, value: object) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        (path,) = folder.glob(name)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line | {key: value}) + "\n" for line in lines))

    return changed


def replace_log(text: str) -> Callable[[Path], None]:
    return lambda folder: [path.write_text(text) for path in folder.glob("ticks/_delta_log/*.json")] and None


def without_statistics(folder: Path) -> None:
    for path in folder.glob("ticks/_delta_log/*.json"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line.get("add", {}).pop("stats", None)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


INF = float("inf")
ENDS = "replay_buffer.zarr/meta/episode_ends/.zarray"
ODD: dict[str, tuple[str, Callable[[Path], None], str, str]] = {
    "chunks_size 0": ("lerobot21", change("meta/info.json", "chunks_size", value=0), "chunks_size is 0", "chunks_size"),
    "chunks_size inf": (
        "lerobot21",
        change("meta/info.json", "chunks_size", value=INF),
        "cannot convert float infinity",
        "chunks_size is inf",
    ),
    "episode_index inf": (
        "lerobot21",
        change_lines("meta/episodes.jsonl", "episode_index", INF),
        "cannot convert float infinity",
        "episode_index is inf",
    ),
    "task_index inf": (
        "lerobot21",
        change_lines("meta/tasks.jsonl", "task_index", INF),
        "cannot convert float infinity",
        "task_index is not 0",
    ),
    "shardLengths -1": (
        "rlds",
        change("*/*/dataset_info.json", "splits", 0, "shardLengths", value=["-1"]),
        "a file of -1 records",
        "says -1",
    ),
    "a shape of 9 million": (
        "diffusion_policy",
        change(ENDS, "shape", value=[9_000_000]),
        "episode_ends/1: not there",
        "episode_ends/1: not there",
    ),
    "a log of text": ("delta", replace_log("nonsense"), "Json error", "Json error"),
    "an empty log": ("delta", replace_log(""), "No table metadata", "No table metadata"),
}


@pytest.mark.parametrize("what", ODD)
def test_odd_metadata_is_refused_in_one_line_by_the_loader_and_by_validate(
    what: str, copied: Callable[[str], Path]
) -> None:
    name, damage, loader_says, validate_says = ODD[what]
    if name == "delta":
        pytest.importorskip("deltalake")
    folder = copied(name) / name
    (folder / "SHA256SUMS").unlink(missing_ok=True)
    damage(folder)

    with pytest.raises(RoboCacheError, match=loader_says) as refused:
        read_all(name, folder.parent)
    assert str(refused.value).isprintable()
    assert any(validate_says in str(one) for one in validate(folder)[0].found)


def test_a_delta_log_without_statistics_is_read_and_stated_by_validate(copied: Callable[[str], Path]) -> None:
    pytest.importorskip("deltalake")
    folder = copied("delta") / "delta"
    whole = [open_dataset("delta", folder)[index]["fused"] for index in range(2)]
    without_statistics(folder)

    dataset = open_dataset("delta", folder)

    assert [dataset[index]["fused"].equal(each) for index, each in enumerate(whole)] == [True, True]
    assert any("the log does not state which episodes are in it" in str(one) for one in validate(folder)[0].found)


def test_the_last_recording_missing_is_named_and_counted(copied: Callable[[str], Path]) -> None:
    folder = copied("mcap")
    (folder / MCAP).unlink()
    dataset = open_dataset("mcap", folder / "mcap")

    assert len(dataset) == 2
    with pytest.raises(DatasetError, match=r"episode_000001\.mcap: not there"):
        dataset[1]


@pytest.mark.parametrize("name", ["lerobot", "lerobot21"])
def test_a_missing_provenance_is_named_by_the_loader_and_by_validate(name: str, copied: Callable[[str], Path]) -> None:
    folder = copied(name) / name
    (folder / "meta" / "robocache.json").unlink()

    with pytest.raises(DatasetError, match=r"meta/robocache\.json: not there"):
        open_dataset("lerobot", folder)
    assert any("meta/robocache.json: is missing" in str(one) for one in validate(folder)[0].found)


def test_missing_files_of_voxels_are_named_and_not_read_as_zeros(copied: Callable[[str], Path]) -> None:
    folder = copied("lerobot")
    dataset = open_dataset("lerobot", folder / "lerobot", modalities=("voxels",))
    shutil.rmtree(folder / "lerobot" / "arrays" / "voxels")

    with pytest.raises(DatasetError, match=r"arrays/voxels: no file has row 0 of episode 0"):
        dataset[0]


def test_a_missing_table_of_episodes_is_noticed_by_the_number_of_episodes(copied: Callable[[str], Path]) -> None:
    folder = copied("lerobot") / "lerobot"
    info = json.loads((folder / "meta" / "info.json").read_text())
    (folder / "meta" / "info.json").write_text(json.dumps(info | {"total_episodes": 3}))

    with pytest.raises(DatasetError, match="meta has 2 of 3 episodes; get the folder meta again"):
        open_dataset("lerobot", folder)
