"""Files of kilobytes that claim to hold gigabytes: loaders and `validate` refuse them in one line, before they read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from test.fuzz.datasets import write_lerobot, write_robomimic

ROOT = Path(__file__).parents[2]
LIMIT_KIB = 300 << 10  # by which a process may grow
# The peak of each step of a process of its own: Linux counts it anew after a write to clear_refs.
MEASURE = """
import json, re, sys
from pathlib import Path
from robocache_ros.datasets import Hdf5Trajectories, RoboMimicDataset, TimelineDataset, open_dataset
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.validate import validate
def status(name):
    return int(re.search(name + r":\\s*(\\d+) kB", open("/proc/self/status").read())[1])
def read(kind, path):
    if kind == "trajectories":
        dataset = TimelineDataset(Hdf5Trajectories(path / "own.hdf5"))
    elif kind == "mask":
        dataset = RoboMimicDataset(path / "lift.hdf5", mask="train")
    else:
        dataset = open_dataset(kind, path / "lift.hdf5" if (path / "lift.hdf5").exists() else path)
    return [dataset[index]["length"] for index in range(len(dataset))]
def check(kind, path):
    path = path / "lift.hdf5" if (path / "lift.hdf5").exists() else path
    return [str(one) for findings in validate(path) for one in findings.found]
def measured(work, *arguments):
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    try:
        found = work(*arguments)
    except RoboCacheError as error:
        found = str(error)
    return status("VmHWM") - before, found
import h5py, pyarrow.dataset, pyarrow.parquet
bombs = json.loads(sys.argv[1])
print(json.dumps({
    name: [measured(read, kind, Path(path)), measured(check, kind, Path(path)) if kind != "trajectories" else None]
    for name, (kind, path) in bombs.items()
}))
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


def write_trajectories(folder: Path) -> None:
    folder.mkdir(parents=True)
    with h5py.File(folder / "own.hdf5", "w") as file:
        file["one/state/values"] = np.zeros((5, 2), np.float32)
        file["one/state/stamps_ns"] = np.arange(5)


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
        unwritten("one/state/stamps_ns", (100_000_000,), "i8", "own.hdf5"),
        "state: 0 stored bytes claim to hold 800,000,000",
    ),
    "many ticks of an export": (
        "export/robomimic",
        unwritten("data/demo_0/robocache/tick_ns", (90_000_000,), "i8", "dataset.hdf5"),
        "tick_ns",
    ),
    "a chunk of zeros": ("export/diffusion_policy", zeros_in_a_chunk, "robocache.tick_ns"),
}
WRITERS: dict[str, Callable[[Path], None]] = {
    "lerobot": write_lerobot,
    "robomimic": write_robomimic,
    "mask": write_robomimic,
    "trajectories": write_trajectories,
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, exported: Callable[[str], Path]) -> dict[str, list]:
    """By bomb, KiB and result of the loader and of `validate`, of a process that reads one after the other."""
    folder = tmp_path_factory.mktemp("bombs")
    made = {}
    for number, (name, (kind, change, _)) in enumerate(BOMBS.items()):
        path, format_name = folder / str(number), kind.rpartition("/")[2]
        copied = partial(shutil.copytree, exported("image") / format_name)
        WRITERS.get(kind, copied)(path)
        change(path)
        made[name] = (format_name, str(path))
        assert "/" in kind or sum(file.stat().st_size for file in path.rglob("*")) < 1 << 20, name
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MEASURE, json.dumps(made)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", BOMBS)
def test_a_loader_refuses_in_one_line_and_little_memory(name: str, outcomes: dict[str, list]) -> None:
    grown, said = outcomes[name][0]

    assert isinstance(said, str), said
    assert BOMBS[name][2] in said
    assert len(said) < 260
    assert said.isprintable()
    assert grown < LIMIT_KIB


@pytest.mark.parametrize("name", [name for name, (kind, _, _) in BOMBS.items() if kind != "trajectories"])
def test_validate_reports_it_in_little_memory(name: str, outcomes: dict[str, list]) -> None:
    grown, found = outcomes[name][1]

    assert any(word in one for one in found for word in ("claim", "rows", "names", "characters")), found
    assert grown < LIMIT_KIB
