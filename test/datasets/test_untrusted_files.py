"""Datasets that name files elsewhere, that claim impossible sizes, or whose files are not files: refused."""

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

from robocache_ros.datasets import DatasetError, LeRobotTimelineDataset, RTXDataset, open_dataset
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.validate import validate
from robocache_ros.untrusted_files import given_file, open_container
from test.datasets.small import (
    change_info,
    same,
    samples,
    write_hdf5,
    write_lerobot,
    write_rlds,
    write_robomimic,
    write_video,
)
from test.fuzz.datasets import DAMAGED, read
from test.fuzz.peaks import peaks

DATA, VIDEO = "data/chunk-000/file-000.parquet", "videos/observation.images.front/chunk-000/file-000.mp4"


def read_all(name: str, dataset: Path) -> None:
    """Read every episode of an export."""
    opened = open_dataset(name, dataset, modalities=("vision", "proprio", "language"))
    for index in range(len(opened)):
        opened[index]


def found(dataset: Path) -> str:
    """What `validate` finds, as one text."""
    return "\n".join(str(finding) for findings in validate(dataset, decode=True) for finding in findings.found)


@pytest.fixture
def lerobot(exported: Callable[[str], Path], tmp_path: Path) -> Path:
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
def outside(tmp_path: Path) -> Path:
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
def test_data_in_another_file_are_refused(kind: str, name: str, stored: Any, outside: Path, tmp_path: Path) -> None:
    path = {"robomimic": write_robomimic, "hdf5": write_hdf5}[kind](tmp_path / "d")
    with h5py.File(path, "a") as file:
        del file[name]
        stored(file, name, outside)
    with pytest.raises(DatasetError, match=REASON):
        open_dataset(kind, path)[0]
    assert kind == "hdf5" or re.search(REASON, found(path))


def test_a_filter_that_hdf5_would_load_code_for_is_refused(tmp_path: Path) -> None:
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
def test_lerobot_templates_that_leave_the_dataset_are_refused(
    template: str, name: str, lerobot: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    shutil.copy(lerobot / (DATA if template == "data_path" else VIDEO), tmp_path / "outside" / "0")
    change_info(lerobot, **{template: name.replace("/outside", f"{tmp_path}/outside", name[0] == "/")})
    with pytest.raises(DatasetError, match="not in the folder of the dataset"):
        LeRobotTimelineDataset(lerobot)[0]
    assert "is outside the dataset" in found(lerobot)


@pytest.mark.parametrize(
    "template", ["../outside-{SHARD_X_OF_Y}", "x" * 70_000, "x/" * 2030, "a\0b", "\ud800", "{SPLIT:>999999999}"]
)
def test_rlds_templates_that_are_no_names_are_refused(template: str, tmp_path: Path) -> None:
    write_rlds(tmp_path / "d")
    path = tmp_path / "d" / "dataset_info.json"
    info = json.loads(path.read_text())
    info["splits"][0]["filepathTemplate"] = template
    path.write_text(json.dumps(info))
    with pytest.raises(RoboCacheError, match=r"not in the folder|not a path|no file of the split"):
        RTXDataset(tmp_path / "d")
    assert re.search("outside the dataset|not a path|is missing", found(tmp_path / "d"))


@pytest.mark.parametrize("path", ["/{}/{}", "s3://elsewhere/{}", "../outside/{}", "%2e%2e/outside/{}", "%252e%252e/{}"])
@pytest.mark.parametrize("table", ["episodes", "ticks"])
def test_delta_logs_that_name_files_elsewhere_are_refused(
    table: str, path: str, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    dataset = Path(shutil.copytree(exported("none") / "delta", tmp_path / "d"))
    log = dataset / table / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["path"] = path.replace("{}", line["add"]["path"])
    log.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DatasetError, match="not in the folder of the dataset"):
        read_all("delta", dataset)
    assert "not in the folder of the dataset" in found(dataset)


def rename_stream(dataset: Path, name: str) -> None:
    path = dataset / "replay_buffer.zarr" / ".zattrs"
    about = path.read_text()
    stream = json.loads(about)["robocache"]["layout"]["columns"][0]["stream"]
    path.write_text(about.replace(f'"{stream}"', f'"{name}"'))


def rename_shard(dataset: Path, name: str) -> None:
    index = dataset / "dataset.json"
    reported = json.loads(index.read_text())
    shutil.move(dataset / reported["shards"][0]["name"], dataset.parent / "shard.tar")
    reported["shards"][0]["name"] = name
    index.write_text(json.dumps(reported))


@pytest.mark.parametrize(
    ("kind", "rename", "name"),
    [
        ("diffusion_policy", rename_stream, "../../outside"),
        ("diffusion_policy", rename_stream, "x" * 70_000),
        ("webdataset", rename_shard, "../shard.tar"),
    ],
)
def test_streams_and_shards_that_leave_the_dataset_are_refused(
    kind: str, rename: Callable[[Path, str], None], name: str, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    dataset = Path(shutil.copytree(exported("none") / kind, tmp_path / "d"))
    rename(dataset, name)
    with pytest.raises(DatasetError, match=r"not in the folder of the dataset|not a path"):
        read_all(kind, dataset)


@pytest.mark.parametrize("name", ["lerobot", "calvin", "hdf5", "delta", "webdataset"])
def test_a_path_that_is_too_long_is_refused(name: str) -> None:
    for path in ("x" * 300, "x/" * 35_000, "a\0b"):
        with pytest.raises(RoboCacheError, match="characters, not a path") as error:
            open_dataset(name, path)
        assert len(str(error.value)) < 200
        with pytest.raises(RoboCacheError, match="characters, not a path"):
            validate(path)


# Links


@pytest.mark.parametrize("name", [DATA, VIDEO])
def test_a_link_out_of_the_dataset_is_refused(name: str, lerobot: Path, tmp_path: Path) -> None:
    shutil.move(lerobot / name, tmp_path / "outside")
    (lerobot / name).symlink_to(tmp_path / "outside")
    with pytest.raises(DatasetError, match="is a link out of the dataset"):
        LeRobotTimelineDataset(lerobot)[0]
    assert "is a link out of the dataset" in found(lerobot)


def test_links_within_a_dataset_and_to_it_are_followed(lerobot: Path, tmp_path: Path) -> None:
    wanted = samples(LeRobotTimelineDataset(lerobot))
    (lerobot / "objects").mkdir()
    shutil.move(lerobot / VIDEO, lerobot / "objects" / "a")
    (lerobot / VIDEO).symlink_to("../../../objects/a")
    (tmp_path / "link").symlink_to("d")
    assert same(samples(LeRobotTimelineDataset(tmp_path / "link")), wanted)


def test_a_snapshot_in_the_cache_of_hugging_face_is_read(lerobot: Path, tmp_path: Path) -> None:
    wanted = samples(LeRobotTimelineDataset(lerobot))
    repository = tmp_path / "hub" / "datasets--robocache--lift"
    snapshot = repository / "snapshots" / "0123abcd"
    (repository / "blobs").mkdir(parents=True)
    for number, file in enumerate(sorted(path for path in lerobot.rglob("*") if path.is_file())):
        place = snapshot / file.relative_to(lerobot)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(file, repository / "blobs" / str(number))
        place.symlink_to(os.path.relpath(repository / "blobs" / str(number), place.parent))
    assert same(samples(LeRobotTimelineDataset(snapshot)), wanted)
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
def test_a_playlist_in_place_of_a_video_is_refused(name: str, text: str, lerobot: Path, tmp_path: Path) -> None:
    write_video(tmp_path / "outside.ts", FRAMES)
    (lerobot / VIDEO).with_name(name).write_text(text.replace("{}", str(tmp_path / "outside.ts")))
    change_info(lerobot, video_path=f"videos/{{video_key}}/chunk-000/{name}")
    with pytest.raises(DatasetError, match="damaged, or not mp4"):
        LeRobotTimelineDataset(lerobot, cameras=["front"])[0]
    assert "damaged, or not mp4" in found(lerobot)


@pytest.mark.parametrize("container", ["mp4", "mov", "mkv", "avi", "ts"])
def test_a_video_in_any_known_container_is_read(container: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / f"video.{container}", FRAMES).rename(tmp_path / "video")  # whatever its name
    with open_container(given_file(path)) as opened:
        assert sum(1 for _ in opened.decode(video=0)) == 10


# Pipes


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", DAMAGED)
def test_a_pipe_in_place_of_a_file_does_not_hang(name: str, tmp_path: Path) -> None:
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
    table = pa.table(
        {"task_index": np.zeros(1 << 20, np.int64), "task": pa.array(["lift"]).take(np.zeros(1 << 20, int))}
    )
    write_groups(folder / "meta/tasks.parquet", table, 12)


def many_episodes(folder: Path) -> None:
    path = folder / "meta/episodes/chunk-000/file-000.parquet"
    one = parquet.read_table(path).slice(0, 1)
    write_groups(path, one.take(np.zeros(1 << 20, int)), 9)


def wide_rows(folder: Path) -> None:
    path = folder / "data/chunk-000/file-000.parquet"
    table = parquet.read_table(path).slice(0, 1).take(np.zeros(4000, int))
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4000 * 1000, np.float32)), 1000)
    table = table.set_column(table.column_names.index("action"), "action", wide)
    write_groups(path, table, 40, compression="zstd")


def unwritten(name: str, shape: tuple[int, ...], dtype: str, file: str = "lift.hdf5") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with h5py.File(folder / file, "a") as opened:
            opened.pop(name, None)
            chunks = tuple(min(side, 1 << 16) for side in shape) or None
            opened.create_dataset(name, shape, dtype, chunks=chunks, compression="gzip" if shape else None)

    return change


def zeros_in_a_chunk(folder: Path) -> None:
    array = folder / "replay_buffer.zarr/data/robocache.tick_ns"
    about = json.loads((array / ".zarray").read_text())
    about["chunks"] = [25 << 20]
    (array / ".zarray").write_text(json.dumps(about))
    (array / "0").write_bytes(pa.Codec("zstd").compress(bytes(200 << 20), asbytes=True))


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
    "many stamps": (
        "trajectories",
        unwritten("0/joints/stamps_ns", (100_000_000,), "i8", "own.hdf5"),
        "joints: 0 stored bytes claim to hold 800,000,000",
    ),
    "many ticks of an export": (
        "export/robomimic",
        unwritten("data/demo_0/robocache/tick_ns", (90_000_000,), "i8", "dataset.hdf5"),
        "tick_ns",
    ),
    "a chunk of zeros": ("export/diffusion_policy", zeros_in_a_chunk, "robocache.tick_ns"),
}


WRITERS: dict[str, Callable[[Path], object]] = {
    "lerobot": write_lerobot,
    "robomimic": write_robomimic,
    "mask": write_robomimic,
    "trajectories": write_hdf5,
}


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory, exported: Callable[[str], Path]) -> dict[str, Path]:
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
def test_a_loader_refuses_in_one_line_and_little_memory(bombs: dict[str, Path]) -> None:
    for name, (grown, said) in zip(bombs, peaks(OPEN + READ, *bombs.values()), strict=True):
        assert isinstance(said, str), name
        assert BOMBS[name][2] in said
        assert len(said) < 260
        assert said.isprintable()
        assert grown < LIMIT_KIB, name


@pytest.mark.slow
def test_validate_reports_it_in_little_memory(bombs: dict[str, Path]) -> None:
    checked = {name: path for name, path in bombs.items() if path.name != "trajectories"}
    for name, (grown, found) in zip(checked, peaks(OPEN + CHECK, *checked.values()), strict=True):
        assert any(word in one for one in found for word in ("claim", "rows", "names", "characters")), (name, found)
        assert grown < LIMIT_KIB, name
