"""Damaged files, and datasets that name files elsewhere, claim impossible sizes, or have pipes or links in their place.

Each error names the file, and other episodes are still read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from robocache_ros.datasets import DatasetError, LeRobotTimelineDataset, RTXDataset, Window, open_dataset
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.validate import validate
from robocache_ros.untrusted_files import given_file, open_container
from test.datasets import small
from test.export.planted_faults import (
    ZARR,
    at,
    change_column,
    change_lines,
    index,
    info,
    remove,
    replace_text,
    rlds_info,
    setter,
)
from test.fuzz.datasets import DAMAGED, FORMATS, read
from test.fuzz.peaks import peaks

Fault = Callable[[Path], object]
V3, VIDEO3 = "data/chunk-000/file-000.parquet", "videos/observation.images.front/chunk-000/file-000.mp4"
VIDEO = "videos/observation.images.front/chunk-000/episode_000001.mp4"
SHARD, LOG = "train-000000.tar", f"_delta_log/{0:020d}.json"


def read_all(name: str, folder: Path) -> list[Any]:
    return small.samples(open_dataset(name, folder))


def found(dataset: Path) -> str:
    """What `validate` finds, as one text."""
    return "\n".join(str(finding) for findings in validate(dataset, decode=True) for finding in findings.found)


# Faults in one episode, for each format: named and counted, and the other episode is unchanged.


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


SECOND = small.STEPS  # the first row of the second episode


def cut_image(values: list[Any]) -> None:
    values[SECOND + 3]["bytes"] = values[SECOND + 3]["bytes"][:-40]


V3_IMAGES, V21_VIDEO = "LeRobot v3.0, images", "LeRobot v2.1, video"
RECORDS = "bridge-train.tfrecord-00000-of-00001"
FAULTS: list[tuple[str, Fault, str]] = [
    ("RLDS", flip(RECORDS, 0.75), r"record 1: its checksum is wrong"),
    ("RLDS", cut(RECORDS), r"record 1: the file is damaged or ends before it"),
    ("RLDS, gzip", cut(RECORDS), r"record 1.*gzip"),
    ("robomimic", change_demo("obs/state", 2, np.nan), r"demo_1: state: row 2, column 0 is not finite"),
    ("robomimic", change_demo("actions", 0, np.inf), r"demo_1: actions: row 0, column 0 is not finite"),
    (V3_IMAGES, change_column(V3, "observation.state", at((SECOND + 2, 1), np.nan)), r"row 2, column 1 is not finite"),
    (V3_IMAGES, change_column(V3, "observation.images.front", cut_image), r"episode 1: .*image 3: .*png"),
    (V21_VIDEO, remove(VIDEO), r"episode_000001.mp4: not there"),
    (V21_VIDEO, cut(VIDEO), r"episode_000001.mp4"),
    (V21_VIDEO, remove("data/chunk-000/episode_000001.parquet"), r"episode_000001.parquet: not there"),
    (V21_VIDEO, cut("data/chunk-000/episode_000001.parquet"), r"episode_000001.parquet: damaged"),
    ("CALVIN", cut("episode_0000008.npz"), r"episode_0000008.npz: damaged"),
    ("CALVIN", remove("episode_0000008.npz"), r"episode_0000008.npz: not there"),
    ("CALVIN", flip("episode_0000008.npz", 0.1), r"episode_0000008.npz"),
    ("CALVIN", change_step(8, "robot_obs", np.nan), r"robot_obs: row 2, column 0 is not finite"),
]


@pytest.mark.parametrize(("name", "fault", "message"), FAULTS, ids=[f"{n}: {m}" for n, _, m in FAULTS])
def test_a_fault_is_named_and_counted_and_the_other_episode_is_unchanged(name, fault, message, tmp_path):
    write, opener, _ = FORMATS[name]
    write(tmp_path / "good")
    write(tmp_path / "bad")
    fault(tmp_path / "bad")
    with pytest.raises(RoboCacheError, match=f"sample 1: .*{message}"):
        list(small.loader_of(opener(tmp_path / "bad"), 1))
    skipping = small.loader_of(opener(tmp_path / "bad"), 2, on_error="skip")
    (batch,) = skipping
    expected = small.first_batch(opener(tmp_path / "good"), 1)
    assert (skipping.skipped, list(skipping.skipped_samples)) == (1, [1])
    assert small.same([batch], [expected])


@pytest.mark.parametrize(("name", "file"), [("robomimic", "lift.hdf5"), ("HDF5", "own.hdf5")])
def test_a_truncated_hdf5_file_is_named_when_it_is_opened(name, file, tmp_path):
    write, opener, _ = DAMAGED[name]
    write(tmp_path / "bad")
    cut(file)(tmp_path / "bad")
    with pytest.raises(DatasetError, match=f"{file}: it ends early"):
        opener(tmp_path / "bad")


def test_a_missing_shard_is_skipped_also_where_windows_are_counted(tmp_path):
    folder = small.write_tfds(tmp_path / "d", [small.episode(3), small.episode(3, 10.0)], shards=2)
    complete = RTXDataset(folder, target_hz=5, window=Window(2))
    wanted = [complete[k]["proprio"] for k in range(3, 6)]
    (folder / "bridge-train.tfrecord-00000-of-00002").unlink()
    with pytest.raises(DatasetError, match="00000-of-00002: not there"):
        small.loader_of(RTXDataset(folder, target_hz=5, window=Window(2)), 3)
    loader = small.loader_of(RTXDataset(folder, target_hz=5, window=Window(2)), 3, on_error="skip", workers=1)
    (batch,) = list(loader)
    assert [row.equal(each) for row, each in zip(batch["proprio"], wanted, strict=True)] == [True] * 3
    assert loader.skipped == 1
    assert "00000-of-00002: not there" in loader.skipped_samples[0]


def test_a_dataset_without_samples_is_refused(tmp_path):
    folder = small.write_tfds(tmp_path / "d", [])
    with pytest.raises(RoboCacheError, match="dataset: it has no samples; check its path"):
        small.loader_of(RTXDataset(folder), 2)


def test_features_that_are_not_listed_are_stated(tmp_path):
    folder = small.write_tfds(tmp_path / "d", [small.episode(3)])
    replace_text("features.json", '"language_instruction"', '"language_instruktion"')(folder)
    with pytest.warns(UserWarning, match=r"features.json: does not list steps/language_instruction"):
        RTXDataset(folder)[0]


def test_features_of_different_numbers_of_steps_are_refused(tmp_path):
    folder = small.write_tfds(tmp_path / "d", [small.episode(4)])
    replace_text("features.json", '{"dimensions": ["2"]}', '{"dimensions": ["1"]}')(folder)
    with pytest.raises(DatasetError, match=r"record 0: .*4.*8.*get features.json again|8 steps of .*observation/state"):
        RTXDataset(folder)[0]


def test_a_task_that_is_not_listed_is_refused(tmp_path):
    write, opener, _ = FORMATS[V21_VIDEO]
    write(tmp_path / "d")
    (tmp_path / "d" / "meta" / "tasks.jsonl").write_text(json.dumps({"task_index": 1, "task": "push"}))
    with pytest.raises(DatasetError, match="episode 0: task 0 is not in the list of tasks"):
        opener(tmp_path / "d")[0]


# Damaged files of exports: the error of the loader names the file, also what `validate` finds.

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
def copied(exported, tmp_path) -> Callable[[str], Path]:
    """A copy of an export of one format, to damage, without checksums."""

    def made(name: str) -> Path:
        if name == "delta":
            pytest.importorskip("deltalake")
        return Path(shutil.copytree(exported("image") / name, tmp_path / name, ignore=lambda *_: ["SHA256SUMS"]))

    return made


@pytest.mark.parametrize(
    ("name", "fault", "says", "finds"), EXPORTS, ids=[f"{name}: {text}" for name, _, text, _ in EXPORTS]
)
def test_damage_to_an_export_is_one_line_of_the_loader_and_found_by_validate(name, fault, says, finds, copied):
    folder = copied(name)
    fault(folder)
    with pytest.raises(RoboCacheError, match=says) as refused:
        read_all(name, folder)
    assert str(refused.value).isprintable()
    assert any(finds in str(one) for one in validate(folder)[0].found)


@pytest.mark.parametrize("name", ["webdataset", "diffusion_policy", "mcap", "delta"])
def test_a_folder_without_an_export_is_refused(name, tmp_path):
    with pytest.raises(DatasetError, match=r"cannot be read|not there|no Delta Lake dataset is read"):
        open_dataset(name, tmp_path)


def test_a_delta_log_without_statistics_is_read_and_stated_by_validate(copied):
    folder = copied("delta")
    whole = [each["fused"] for each in read_all("delta", folder)]
    change_lines(f"ticks/{LOG}", lambda lines: [line.get("add", {}).pop("stats", None) for line in lines])(folder)
    changed = [each["fused"] for each in read_all("delta", folder)]
    assert [each.equal(other) for each, other in zip(changed, whole, strict=True)] == [True, True]
    assert any("the log does not state which episodes are in it" in str(one) for one in validate(folder)[0].found)


def test_missing_files_of_voxels_are_named_and_not_read_as_zeros(copied):
    folder = copied("lerobot")
    dataset = open_dataset("lerobot", folder, modalities=("voxels",))
    shutil.rmtree(folder / "arrays" / "voxels")
    with pytest.raises(DatasetError, match=r"arrays/voxels: no file has row 0 of episode 0"):
        dataset[0]


# Datasets that name files elsewhere, that claim impossible sizes, or whose files are not files: refused.


@pytest.fixture
def lerobot(exported, tmp_path) -> Path:
    """A LeRobot dataset with videos, to be changed."""
    return Path(shutil.copytree(exported("video") / "lerobot", tmp_path / "d"))


# HDF5


def external_storage(file: Any, name: str, outside: Path) -> None:
    file.create_dataset(name, (6, 3), "f8", external=[(str(outside / "raw"), 0, 144)])


def external_link(file: Any, name: str, outside: Path) -> None:
    file[name] = h5py.ExternalLink(str(outside / "values.hdf5"), "/values")


def soft_link_to_another_file(file: Any, name: str, outside: Path) -> None:
    file["elsewhere"] = h5py.ExternalLink(str(outside / "values.hdf5"), "/")
    file[name] = h5py.SoftLink("/elsewhere/values")


def virtual_dataset(file: Any, name: str, outside: Path) -> None:
    layout = h5py.VirtualLayout((6, 3), "f8")
    layout[:] = h5py.VirtualSource(str(outside / "values.hdf5"), "values", (6, 3))
    file.create_virtual_dataset(name, layout)


HDF5 = [external_storage, external_link, soft_link_to_another_file, virtual_dataset]
REASON = "is a link to elsewhere|is in other files"


@pytest.fixture
def outside(tmp_path) -> Path:
    """A folder beside the datasets, whose values no dataset may give."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "raw").write_bytes(np.arange(18.0).tobytes())
    with h5py.File(folder / "values.hdf5", "w") as file:
        file["values"] = np.arange(18.0).reshape(6, 3)
    return folder


@pytest.mark.parametrize("stored", HDF5)
@pytest.mark.parametrize(
    ("kind", "name"),
    [("robomimic", "data/demo_0/obs/state"), *(("hdf5", f"0/joints{part}") for part in ("/values", "/stamps_ns", ""))],
)
def test_data_in_another_file_are_refused(kind, name, stored, outside, tmp_path):
    path = {"robomimic": small.write_robomimic, "hdf5": small.write_hdf5}[kind](tmp_path / "d")
    with h5py.File(path, "a") as file:
        del file[name]
        stored(file, name, outside)
    with pytest.raises(DatasetError, match=REASON):
        open_dataset(kind, path)[0]
    assert kind == "hdf5" or re.search(REASON, found(path))


def test_a_filter_that_hdf5_would_load_code_for_is_refused(tmp_path):
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        stream = file.create_group("t/state")
        stream["stamps_ns"] = np.arange(6)
        form = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        form.set_chunk((6, 3))
        form.set_filter(32001, h5py.h5z.FLAG_OPTIONAL)  # Blosc
        space = h5py.h5s.create_simple((6, 3))
        h5py.h5d.create(stream.id, b"values", h5py.h5t.NATIVE_DOUBLE, space, form)
    with pytest.raises(DatasetError, match="filter 32001"):
        open_dataset("hdf5", tmp_path / "d.hdf5")


# Names


@pytest.mark.parametrize("name", ["/outside/{file_index}", "../outside/{file_index}", "a/%2e%2e/%2E%2E/{file_index}"])
@pytest.mark.parametrize("template", ["data_path", "video_path"])
def test_lerobot_templates_that_leave_the_dataset_are_refused(template, name, lerobot, tmp_path):
    (tmp_path / "outside").mkdir()
    shutil.copy(lerobot / (V3 if template == "data_path" else VIDEO3), tmp_path / "outside" / "0")
    info(template, name.replace("/outside", f"{tmp_path}/outside", name[0] == "/"))(lerobot)
    with pytest.raises(DatasetError, match="not in the folder of the dataset"):
        LeRobotTimelineDataset(lerobot)[0]
    assert "is outside the dataset" in found(lerobot)


@pytest.mark.parametrize(
    "template", ["../outside-{SHARD_X_OF_Y}", "x" * 70_000, "x/" * 2030, "a\0b", "\ud800", "{SPLIT:>999999999}"]
)
def test_rlds_templates_that_are_no_names_are_refused(template, tmp_path):
    small.write_rlds(tmp_path / "d")
    setter("dataset_info.json")("splits", 0, "filepathTemplate", template)(tmp_path / "d")
    with pytest.raises(RoboCacheError, match=r"not in the folder|not a path|no file of the split"):
        RTXDataset(tmp_path / "d")
    assert re.search("outside the dataset|not a path|is missing", found(tmp_path / "d"))


@pytest.mark.parametrize("path", ["/{}/{}", "s3://elsewhere/{}", "../outside/{}", "%2e%2e/outside/{}", "%252e%252e/{}"])
@pytest.mark.parametrize("table", ["episodes", "ticks"])
def test_delta_logs_that_name_files_elsewhere_are_refused(table, path, exported, tmp_path):
    dataset = Path(shutil.copytree(exported("none") / "delta", tmp_path / "d"))

    def elsewhere(lines: list[Any]) -> None:
        for added in (line["add"] for line in lines if "add" in line):
            added["path"] = path.replace("{}", added["path"])

    change_lines(f"{table}/{LOG}", elsewhere)(dataset)
    with pytest.raises(DatasetError, match="not in the folder of the dataset"):
        read_all("delta", dataset)
    assert "not in the folder of the dataset" in found(dataset)


def rename_stream(dataset: Path, name: str) -> None:
    path = dataset / "replay_buffer.zarr" / ".zattrs"
    about = path.read_text()
    stream = json.loads(about)["robocache"]["layout"]["columns"][0]["stream"]
    path.write_text(about.replace(f'"{stream}"', f'"{name}"'))


def rename_shard(dataset: Path, name: str) -> None:
    shutil.move(dataset / SHARD, dataset.parent / "shard.tar")
    index("shards", 0, "name", name)(dataset)


@pytest.mark.parametrize(
    ("kind", "rename", "name", "message"),
    [
        ("diffusion_policy", rename_stream, "../../outside", "not in the folder of the dataset"),
        ("diffusion_policy", rename_stream, "x" * 70_000, r"^data/x{14}…x{11}/\.zarray: 70,013 characters, not a path"),
        ("webdataset", rename_shard, "../shard.tar", "not in the folder of the dataset"),
    ],
)
def test_streams_and_shards_that_leave_the_dataset_are_refused(kind, rename, name, message, exported, tmp_path):
    dataset = Path(shutil.copytree(exported("none") / kind, tmp_path / "d"))
    rename(dataset, name)
    with pytest.raises(DatasetError, match=message):
        read_all(kind, dataset)


@pytest.mark.parametrize("name", ["lerobot", "calvin", "hdf5", "delta", "webdataset"])
def test_a_path_that_is_too_long_is_refused(name):
    long = {"x" * 300: f"{'x' * 19}…{'x' * 19}: 300", "x/" * 35_000: f"{'x/' * 9}x…/{'x/' * 9}: 70,000"}
    for path, shown in (long | {"a\0b": r"a\x00b: 3"}).items():
        with pytest.raises(RoboCacheError) as error:
            open_dataset(name, path)
        assert str(error.value) == f"{shown} characters, not a path; give a file or a folder"
        with pytest.raises(RoboCacheError, match="characters, not a path"):
            validate(path)


# Links


@pytest.mark.parametrize("name", [V3, VIDEO3])
def test_a_link_out_of_the_dataset_is_refused(name, lerobot, tmp_path):
    shutil.move(lerobot / name, tmp_path / "outside")
    (lerobot / name).symlink_to(tmp_path / "outside")
    with pytest.raises(DatasetError, match="is a link out of the dataset"):
        LeRobotTimelineDataset(lerobot)[0]
    assert "is a link out of the dataset" in found(lerobot)


def test_links_within_a_dataset_and_to_it_are_followed(lerobot, tmp_path):
    wanted = small.samples(LeRobotTimelineDataset(lerobot))
    (lerobot / "objects").mkdir()
    shutil.move(lerobot / VIDEO3, lerobot / "objects" / "a")
    (lerobot / VIDEO3).symlink_to("../../../objects/a")
    (tmp_path / "link").symlink_to("d")
    assert small.same(small.samples(LeRobotTimelineDataset(tmp_path / "link")), wanted)


def test_a_snapshot_in_the_cache_of_hugging_face_is_read(lerobot, tmp_path):
    wanted = small.samples(LeRobotTimelineDataset(lerobot))
    repository = tmp_path / "hub" / "datasets--robocache--lift"
    snapshot = repository / "snapshots" / "0123abcd"
    (repository / "blobs").mkdir(parents=True)
    for number, file in enumerate(sorted(path for path in lerobot.rglob("*") if path.is_file())):
        place = snapshot / file.relative_to(lerobot)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(file, repository / "blobs" / str(number))
        place.symlink_to(os.path.relpath(repository / "blobs" / str(number), place.parent))
    assert small.same(small.samples(LeRobotTimelineDataset(snapshot)), wanted)
    assert found(snapshot) == ""


# Videos


FRAMES = np.stack([np.full((64, 64, 3), value, np.uint8) for value in range(10)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("file.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"),
        ("file.mp4", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"),
        ("file.mp4", "ffconcat version 1.0\nfile '{}'\n"),
        ("file.mp4", "<?xml version='1.0'?><MPD><Period><BaseURL>file://{}</BaseURL></Period></MPD>"),
    ],
    ids=["hls", "hls as mp4", "concat", "dash"],
)
def test_a_playlist_in_place_of_a_video_is_refused(name, text, lerobot, tmp_path):
    small.write_video(tmp_path / "outside.ts", FRAMES)
    (lerobot / VIDEO3).with_name(name).write_text(text.replace("{}", str(tmp_path / "outside.ts")))
    info("video_path", f"videos/{{video_key}}/chunk-000/{name}")(lerobot)
    with pytest.raises(DatasetError, match="damaged, or not mp4"):
        LeRobotTimelineDataset(lerobot, cameras=["front"])[0]
    assert "damaged, or not mp4" in found(lerobot)


@pytest.mark.parametrize("container", ["mp4", "mov", "mkv", "avi", "ts"])
def test_a_video_in_any_known_container_is_read(container, tmp_path):
    path = small.write_video(tmp_path / f"video.{container}", FRAMES).rename(tmp_path / "video")  # whatever its name
    with open_container(given_file(path)) as opened:
        assert sum(1 for _ in opened.decode(video=0)) == 10


# Pipes


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", DAMAGED)
def test_a_pipe_in_place_of_a_file_does_not_hang(name, tmp_path):
    """Nobody writes to the pipe that takes the place of a file of each kind in turn."""
    dataset, aside = tmp_path / "d", tmp_path / "aside"
    DAMAGED[name][0](dataset)
    files = sorted(path for path in dataset.rglob("*") if path.is_file())
    kinds = {re.sub(r"\d+", "0", str(path.relative_to(dataset))): path for path in files}  # their names differ by more
    for path in kinds.values():
        path.rename(aside)
        os.mkfifo(path)
        for use in (lambda: read(name, dataset), lambda: validate(dataset, decode=True)):
            with suppress(RoboCacheError):
                use()
        path.unlink()
        aside.rename(path)


# Files of kilobytes that claim to hold gigabytes: loaders and `validate` refuse them in one line, before they read.

LIMIT_KIB = 300 << 10  # by which a process may grow
OPEN = """
import h5py, pyarrow.dataset, pyarrow.parquet
from robocache_ros.datasets import Hdf5Trajectories, RoboMimicDataset, TimelineDataset, open_dataset
from robocache_ros.formats.validate import validate
def given(path):
    return path / "lift.hdf5" if (path / "lift.hdf5").exists() else path
"""
READ = """
def work(path):
    kind = path.name
    if kind == "trajectories":
        dataset = TimelineDataset(Hdf5Trajectories(path / "own.hdf5"))
    elif kind == "mask":
        dataset = RoboMimicDataset(path / "lift.hdf5", mask="train")
    else:
        dataset = open_dataset(kind, given(path))
    return [dataset[index]["length"] for index in range(len(dataset))]
"""
CHECK = """
def work(path):
    return [str(one) for findings in validate(given(path)) for one in findings.found]
"""


def write_groups(path: Path, table: pa.Table, groups: int, **options: str) -> None:
    with parquet.ParquetWriter(path, table.schema, **options) as writer:
        for _ in range(groups):
            writer.write_table(table)


def long_task(folder: Path) -> None:
    table = pa.table({"task_index": np.arange(3000), "task": ["lift " * 40_000] * 3000})
    parquet.write_table(table, folder / "meta/tasks.parquet", compression="zstd")


def many_tasks(folder: Path) -> None:
    none = np.zeros(1 << 20, np.int64)
    table = pa.table({"task_index": none, "task": pa.array(["lift"]).take(none)})
    write_groups(folder / "meta/tasks.parquet", table, 12)


def many_episodes(folder: Path) -> None:
    path = folder / "meta/episodes/chunk-000/file-000.parquet"
    write_groups(path, parquet.read_table(path).take(np.zeros(1 << 20, int)), 9)


def wide_rows(folder: Path) -> None:
    table = parquet.read_table(folder / V3).take(np.zeros(4000, int))
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4000 * 1000, np.float32)), 1000)
    table = table.set_column(table.column_names.index("action"), "action", wide)
    write_groups(folder / V3, table, 40, compression="zstd")


def unwritten(name: str, shape: tuple[int, ...], dtype: str, file: str = "lift.hdf5") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with h5py.File(folder / file, "a") as opened:
            opened.pop(name, None)
            chunks = tuple(min(side, 1 << 16) for side in shape) or None
            opened.create_dataset(name, shape, dtype, chunks=chunks, compression="gzip" if shape else None)

    return change


def zeros_in_a_chunk(folder: Path) -> None:
    array = f"{ZARR}/data/robocache.tick_ns"
    setter(f"{array}/.zarray")("chunks", [25 << 20])(folder)
    (folder / array / "0").write_bytes(pa.Codec("zstd").compress(bytes(200 << 20), asbytes=True))


TICKS = "data/demo_0/robocache/tick_ns"
# By name: how the dataset is written, how it is opened, what is changed, and what the loader and `validate` say.
BOMBS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a long task in every row": ("lerobot", long_task, "tasks.parquet: a task of 200,000 characters"),
    "many equal tasks": ("lerobot", many_tasks, "tasks.parquet: 12,582,912 rows in"),
    "many equal episodes": ("lerobot", many_episodes, "file-000.parquet: 9,437,184 rows in"),
    "wide rows of zeros": ("lerobot", wide_rows, "file-000.parquet: "),
    "a mask of many names": ("mask", unwritten("mask/train", (500_000_000,), "S8"), "mask/train: 500,000,000 names"),
    "many actions": ("robomimic", unwritten("data/demo_0/actions", (300_000_000, 3), "f4"), "demo_0"),
    "wide observations": ("robomimic", unwritten("data/demo_0/obs/state", (6, 20_000_000), "f4"), "state: "),
    "a long provenance": ("robomimic", unwritten("robocache/provenance", (), "S900000000"), "provenance: "),
    "many stamps": ("trajectories", unwritten("0/joints/stamps_ns", (100_000_000,), "i8", "own.hdf5"),
                    "joints: 0 stored bytes claim to hold 800,000,000"),
    "many ticks of an export": ("export/robomimic", unwritten(TICKS, (90_000_000,), "i8", "dataset.hdf5"), "tick_ns"),
    "a chunk of zeros": ("export/diffusion_policy", zeros_in_a_chunk, "robocache.tick_ns"),
}  # fmt: skip


WRITERS: dict[str, Callable[[Path], object]] = {
    "lerobot": small.write_lerobot,
    "robomimic": small.write_robomimic,
    "mask": small.write_robomimic,
    "trajectories": small.write_hdf5,
}


@pytest.fixture(scope="module")
def bombs(tmp_path_factory, exported) -> dict[str, Path]:
    """The folder of each, whose name is the format."""
    folder, made = tmp_path_factory.mktemp("bombs"), {}
    for number, (name, (kind, change, _)) in enumerate(BOMBS.items()):
        format_name = kind.rpartition("/")[2]
        made[name] = folder / str(number) / format_name
        WRITERS.get(kind, partial(shutil.copytree, exported("image") / format_name))(made[name])
        change(made[name])
        assert "/" in kind or sum(file.stat().st_size for file in made[name].rglob("*")) < 1 << 20, name
    return made


@pytest.mark.slow
def test_a_loader_refuses_in_one_line_and_little_memory(bombs):
    for name, (grown, said) in zip(bombs, peaks(OPEN + READ, *bombs.values()), strict=True):
        assert isinstance(said, str), name
        assert BOMBS[name][2] in said
        assert len(said) < 260
        assert said.isprintable()
        assert grown < LIMIT_KIB, name


@pytest.mark.slow
def test_validate_reports_it_in_little_memory(bombs):
    checked = {name: path for name, path in bombs.items() if path.name != "trajectories"}
    for name, (grown, found) in zip(checked, peaks(OPEN + CHECK, *checked.values()), strict=True):
        assert any(word in one for one in found for word in ("claim", "rows", "names", "characters")), (name, found)
        assert grown < LIMIT_KIB, name
