"""Faults in one episode, for each format: named and counted, and the other episode is unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from robocache_ros.datasets import DatasetError, RTXDataset, TimelineLoader, Window
from robocache_ros.errors import RoboCacheError
from test.datasets.conftest import STEPS as FEATURES
from test.datasets.conftest import episode, picture, write_tfds
from test.fuzz.datasets import FORMATS, STEPS

Fault = Callable[[Path], None]
V3 = "data/chunk-000/file-000.parquet"
VIDEO = "videos/observation.images.front/chunk-000/episode_000001.mp4"


def flip(name: str, share: float) -> Fault:
    def fault(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[int(len(data) * share)] ^= 0xFF
        (folder / name).write_bytes(data)

    return fault


def cut(name: str) -> Fault:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100])


def remove(name: str) -> Fault:
    return lambda folder: (folder / name).unlink()


def change_demo(key: str, row: int, value: float) -> Fault:
    def fault(folder: Path) -> None:
        with h5py.File(folder / "lift.hdf5", "a") as file:
            file[f"data/demo_1/{key}"][row] = value

    return fault


def change_column(file: str, name: str, change: Callable[[list], None]) -> Fault:
    def fault(folder: Path) -> None:
        table = parquet.read_table(folder / file)
        values = table.column(name).to_pylist()
        change(values)
        place = table.column_names.index(name)
        parquet.write_table(
            table.set_column(place, name, pa.array(values, table.schema.field(name).type)), folder / file
        )

    return fault


def change_step(step: int, key: str, value: float) -> Fault:
    def fault(folder: Path) -> None:
        path = folder / f"episode_{step:07d}.npz"
        arrays = dict(np.load(path))
        arrays[key][0] = value
        np.savez(path, **arrays)

    return fault


def to_nan(values: list) -> None:
    values[STEPS + 2] = [0.0, float("nan"), 0.0]


def cut_image(values: list) -> None:
    values[STEPS + 3]["bytes"] = values[STEPS + 3]["bytes"][:-40]


RECORDS = "bridge-train.tfrecord-00000-of-00001"
FAULTS: list[tuple[str, Fault, str]] = [
    ("RLDS", flip(RECORDS, 0.75), r"record 1: its checksum is wrong"),
    ("RLDS", cut(RECORDS), r"record 1: the file is damaged or ends before it"),
    ("RLDS, gzip", cut(RECORDS), r"record 1.*gzip"),
    ("robomimic", change_demo("obs/state", 2, np.nan), r"demo_1: state: row 2, column 0 is not finite"),
    ("robomimic", change_demo("actions", 0, np.inf), r"demo_1: actions: row 0, column 0 is not finite"),
    ("LeRobot v3.0, images", change_column(V3, "observation.state", to_nan), r"row 2, column 1 is not finite"),
    ("LeRobot v3.0, images", change_column(V3, "observation.images.front", cut_image), r"episode 1: .*image 3: .*png"),
    ("LeRobot v2.1, video", remove(VIDEO), r"episode_000001.mp4: not there"),
    ("LeRobot v2.1, video", cut(VIDEO), r"episode_000001.mp4"),
    ("LeRobot v2.1, video", remove("data/chunk-000/episode_000001.parquet"), r"episode_000001.parquet: not there"),
    ("LeRobot v2.1, video", cut("data/chunk-000/episode_000001.parquet"), r"episode_000001.parquet: damaged"),
    ("CALVIN", cut("episode_0000008.npz"), r"episode_0000008.npz: damaged"),
    ("CALVIN", remove("episode_0000008.npz"), r"episode_0000008.npz: not there"),
    ("CALVIN", flip("episode_0000008.npz", 0.5), r"episode_0000008.npz"),
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


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("robomimic")])
def test_a_truncated_hdf5_file_is_named_when_it_is_opened(name: str, tmp_path: Path) -> None:
    write, opener, _ = FORMATS[name]
    write(tmp_path / "bad")
    cut("lift.hdf5")(tmp_path / "bad")

    with pytest.raises(DatasetError, match=r"lift.hdf5: it ends early"):
        opener(tmp_path / "bad")


def test_a_missing_shard_is_skipped_also_where_windows_are_counted(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", FEATURES, [episode(3), episode(3, 10.0)], shards=2)
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
    folder = write_tfds(tmp_path / "d", FEATURES, [])

    with pytest.raises(RoboCacheError, match="dataset: it has no samples; check its path"):
        TimelineLoader(RTXDataset(folder), 2)


def test_features_that_are_not_listed_are_stated(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", FEATURES, [episode(3)])
    path = folder / "features.json"
    path.write_text(path.read_text().replace('"language_instruction"', '"language_instruktion"'))

    with pytest.warns(UserWarning, match=r"features.json: does not list steps/language_instruction"):
        RTXDataset(folder)[0]


def test_features_of_different_numbers_of_steps_are_refused(tmp_path: Path) -> None:
    folder = write_tfds(tmp_path / "d", FEATURES, [episode(4)])
    path = folder / "features.json"
    path.write_text(path.read_text().replace('{"dimensions": ["2"]}', '{"dimensions": ["1"]}'))

    with pytest.raises(DatasetError, match=r"record 0: .*4.*8.*get features.json again|8 steps of .*observation/state"):
        RTXDataset(folder)[0]


def test_a_damaged_image_is_named_when_it_is_used(tmp_path: Path) -> None:
    given = episode(3)
    given["observation/image"][1] = picture(1)[:-20]
    folder = write_tfds(tmp_path / "d", FEATURES, [given, episode(3)])
    loader = TimelineLoader(RTXDataset(folder), 2, on_error="skip")

    assert [batch["index"].tolist() for batch in loader] == [[1]]
    assert re.search("record 0: .*: image 1: .* png", loader.skipped_samples[0])


def test_a_task_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    write, opener, _ = FORMATS["LeRobot v2.1, video"]
    write(tmp_path / "d")
    (tmp_path / "d" / "meta" / "tasks.jsonl").write_text(json.dumps({"task_index": 1, "task": "push"}))

    with pytest.raises(DatasetError, match="episode 0: task 0 is not in the list of tasks"):
        opener(tmp_path / "d")[0]
