"""Recordings, one export of each kind, made once, and what several test files use of them."""

from __future__ import annotations

import io
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.exporter import preview
from robocache_ros.exporter.datasets import ExportResult
from robocache_ros.exporter.executors import Task
from robocache_ros.exporter.job import outputs_of, run_export
from robocache_ros.exporter.preview import DryRun
from robocache_ros.exporter.progress import Advanced, Event, Progress
from robocache_ros.exporter.request import ExportRequest
from robocache_ros.exporter.shards import ShardResult
from robocache_ros.formats.dataset_folder import CHECKSUMS
from robocache_ros.formats.validate import validate
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.sensor_recording import Rows, engine_episodes, sensor_recording, sensor_spec
from test.exporting import export
from test.fuzz.messages import numbers, serialize
from test.shared import once

ROOT = Path(__file__).parents[2]
SPEC, LIFT = ROOT / "config" / "panda_lift.yaml", ROOT / "test" / "data" / "panda_lift"
NO_MEDIA = DatasetOptions(media="none")
FIRST_S, CUT_S = 3.5, 1.5  # the cut around the 150 ms gap at 4.05 s


# `robocache` without its lines of progress, which an export prints if it takes half a minute, as on a busy machine.
QUIET = """if True:
    import math, sys
    from robocache_ros.cli import progress as progress_display
    from robocache_ros.programs import robocache
    progress_display.EVERY_S = math.inf
    sys.exit(robocache())"""
ROBOCACHE = (sys.executable, "-c", QUIET)


@pytest.fixture(scope="session")
def spec() -> FusionSpec:
    return load_spec(SPEC)


@pytest.fixture(scope="session")
def bags(tmp_path_factory) -> list[Path]:
    """Two short recordings: a cut of panda_lift with its gap in it, and a shorter one."""

    def make(folder: Path) -> list[Path]:
        with Bag(LIFT) as complete:
            types = {name: topic.type for name, topic in complete.topics.items()}
            start = complete.start_ns + int(FIRST_S * 1e9)
            return [
                write_bag(folder / name, types, list(complete.messages(None, start, start + int(length * 1e9))))
                for name, length in (("lift", CUT_S), ("again", 1.3))
            ]

    return once(tmp_path_factory, "panda_cuts", make)


@pytest.fixture(scope="session")
def made(tmp_path_factory, bags, spec) -> Callable[[str], ExportResult]:
    """The two recordings as a dataset, by how its images are stored."""

    def make(folder: Path) -> ExportResult:
        options = DatasetOptions(task="lift the cube", robot_type="panda", media=folder.name.rpartition("_")[2])
        return export(bags, spec, folder / "out", options)

    return lambda media: once(tmp_path_factory, f"panda_cuts_as_{media}", make)


@pytest.fixture
def small_disk() -> Callable[..., tuple[int, str, str]]:
    """Runs a command, and then a line of shell, where a folder is a small file system; exit status, stdout, stderr."""
    space = ["unshare", *(["--mount"] if os.geteuid() == 0 else ["--map-root-user", "--mount"])]
    if not shutil.which("unshare") or subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a mount namespace, which this system does not allow")

    def run(folder: Path, size: str, command: list[str], after: str = "true") -> tuple[int, str, str]:
        line = f'mount -t tmpfs -o size={size} none "$0" || exit 99; "$@"; status=$?; {after}; exit $status'
        shell = [*space, "sh", "-c", line, str(folder), *command]
        done = subprocess.run(shell, capture_output=True, text=True, check=False, cwd=ROOT)
        return done.returncode, done.stdout, done.stderr

    return run


def export_shard(bags: Any, outputs: Any, out: str | Path, shard: str, **given: Any) -> ShardResult:
    """Convert a shard, such as `0/3`, in this process."""
    progress = given.pop("progress", None)
    result = run_export(ExportRequest.of(bags, outputs, out, {"jobs": 1, "shard": shard, **given}), progress=progress)
    assert isinstance(result, ShardResult)
    return result


def dry_run(bags: Any, spec: FusionSpec, out: Any, options: DatasetOptions | None = None, **given: Any) -> DryRun:
    """What an export of one dataset would make."""
    (run,) = preview.dry_run(ExportRequest.of(bags, outputs_of([("", spec)], (), options), out, given))
    return run


def by_share(tell: Callable[[str, float], object]) -> Progress:
    """Progress that receives the name of a recording and its completed share."""

    def progress(event: Event) -> None:
        if isinstance(event, Advanced):
            tell(event.recording.path.name, event.share)

    return progress


def named(seen: list[str]) -> Progress:
    """Progress that notes the name of each recording that advances."""
    return by_share(lambda name, _share: seen.append(name))


# Several small recordings, and what an undisturbed export makes of them.

Contents = dict[str, bytes]


def contents(folder: Path) -> Contents:
    """Every file of a folder, also hidden ones."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def written(folder: Path, content: str, *names: str) -> Path:
    """A folder with small files, by default with those by which it is taken for a dataset."""
    for name in names or ("meta/info.json", "data/rows"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


@pytest.fixture(scope="session")
def recordings(bags, tmp_path_factory) -> list[Path]:
    """Four recordings, the last two of which are copies of the first two under names of their own."""

    def make(folder: Path) -> list[Path]:
        return [*bags, *(shutil.copytree(bag, folder / f"copy_{bag.name}") for bag in bags)]

    return once(tmp_path_factory, "four_recordings", make)


@pytest.fixture(scope="session")
def undisturbed(recordings, spec, tmp_path_factory) -> Callable[[str], Contents]:
    """The dataset of one process that nothing stops, by how its images are stored."""

    def make(folder: Path) -> Contents:
        options = DatasetOptions(media=folder.name.rpartition("_")[2])
        return contents(export(recordings, spec, folder / "set", options).out)

    return lambda media: once(tmp_path_factory, f"undisturbed_{media}", make)


# An executor that treats the tasks of an export badly, as a cluster may.


class Elsewhere:
    """An executor that runs tasks as on other machines: pickled, each twice, and in another order."""

    def __init__(self, *, remote: bool = False) -> None:
        self.remote = remote
        self.tasks: list[str] = []

    def parallel(self, tasks: Sequence[Task]) -> int:
        return 1

    def map(self, work: Any, tasks: Sequence[Any], progress: Progress) -> Generator[tuple[Any, Any], None, None]:
        for task in random.Random(1).sample(tasks, len(tasks)):
            for tell in (lambda _event: None, progress):
                its_work, its_task = pickle.loads(pickle.dumps((work, task)))
                result = pickle.loads(pickle.dumps(its_work(its_task, tell)))
            self.tasks.append(task.name)
            yield task, result

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *_: object) -> None: ...


# Recordings of one stream, ten seconds at 50 Hz, with messages that say what the robot does.

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
SECONDS, RATE_HZ = 10, 50
Events = Mapping[tuple[str, str], Iterable[tuple[float, Any]]]  # (topic, type) -> (seconds, value)


def spec_of(**streams: Mapping[str, Any]) -> FusionSpec:
    """A spec with /state and /command of two values each, or with the given streams alone."""
    array = {"type": "std_msgs/msg/Float64MultiArray", "dim": 2}
    made = {"state": {**array, "topic": "/state"}, "command": {**array, "topic": "/command", "role": "action"}}
    for name, keys in streams.items():
        made[name] = {key: value for key, value in {**made.get(name, {}), **keys}.items() if value is not None}
    return load_spec({"robocache": 1, "rate_hz": RATE_HZ, "streams": made})


@pytest.fixture
def record(tmp_path) -> Callable[..., Path]:
    """Writes a recording.

    Tick k has the state (k, -k) and the command (k + 100, 0), unless a function of k gives another one, or None for no
    messages.
    """

    def write(
        events: Events | None = None, *, state=lambda k: (k, -k), command=lambda k: (k + 100, 0), name="bag"
    ) -> Path:
        messages, types = [], {}
        for topic, values in (("/state", state), ("/command", command)):
            types[topic] = "std_msgs/msg/Float64MultiArray"
            for k in range(SECONDS * RATE_HZ + 1):
                found = values(k)
                messages += [(topic, START_NS + k * 20 * MS, numbers(*found))] if found else []
        for (topic, type_), given in (events or {}).items():
            types[topic] = type_
            messages += [(topic, START_NS + round(at * 1e9), serialize(type_, {"data": value})) for at, value in given]
        return write_bag(tmp_path / name, types, sorted(messages, key=lambda each: each[1]))

    return write


def lerobot_rows(dataset: Path) -> Any:
    """All rows of a LeRobot dataset, as pyarrow."""
    files = sorted(dataset.glob("data/*/*.parquet"))
    return pyarrow.concat_tables(parquet.read_table(file, partitioning=None) for file in files)


# Copies of exported datasets, to be damaged.


@pytest.fixture
def copy(made, tmp_path) -> Callable[[str], Path]:
    """A copy of a dataset, by how its images are stored."""
    return lambda media: without_checksums(made(media).out, tmp_path / media)


def without_checksums(dataset: Path, copy: Path) -> Path:
    """A copy of a dataset without its checksums, which would show every change of a file."""
    shutil.copytree(dataset, copy, ignore=shutil.ignore_patterns(CHECKSUMS))
    return copy


def found(dataset: Path, *, decode: bool = False) -> list[str]:
    """What the validation of one dataset finds."""
    (findings,) = validate(dataset, decode=decode)
    return [str(finding) for finding in findings.found]


# Recordings for the real readers.


@pytest.fixture(scope="session")
def sources(bags, spec, tmp_path_factory) -> dict[str, tuple[list[Path], FusionSpec]]:
    """Recordings and their spec by name: `lift`, a robot with gaps, voxels and cameras; `sensors`, the rest."""
    folder = tmp_path_factory.mktemp("sensors")
    sensors = [sensor_recording(folder / f"recording_{seed}", seed) for seed in range(3)]
    return {"lift": (bags, spec), "sensors": (sensors, sensor_spec())}


# Exports as RLDS, WebDataset and MCAP, made once, and what the engine computes for their episodes.

RECORD_FORMATS = ("rlds", "webdataset", "mcap")
TASK = "lift the cube: größer"


@dataclass(frozen=True)
class Exported:
    """A dataset in each format, and what the engine computes for its episodes."""

    out: Path
    spec: FusionSpec
    recordings: tuple[Path, ...]  # of the episodes
    episodes: tuple[Rows, ...]

    @property
    def lengths(self) -> list[int]:
        """Number of ticks of each episode."""
        return [len(rows["tick_ns"]) for rows in self.episodes]

    def vectors(self, expected: Rows, role: str) -> np.ndarray:
        """(T, S) the vectors of a role that are not windows, one beside the other."""
        names = [stream.name for stream in self.spec.vectors if stream.role == role and not stream.rows]
        return np.concatenate([expected[name] for name in names], axis=1)


def tables(reported: dict[str, Any]) -> Iterator[Rows]:
    """The arrays that a probe wrote, by episode."""
    for episode in reported["episodes"]:
        with np.load(episode["file"]) as file:
            yield {name.replace("|", "/"): file[name] for name in file.files}


def picture(data: bytes) -> np.ndarray:
    """(H, W, 3) a jpeg or PNG file."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def close(images: np.ndarray, expected: np.ndarray) -> bool:
    """Whether images are those of a jpeg of high quality; those of the sensors are noise, its worst case."""
    return bool(np.abs(images.astype(int) - expected).mean() < 20)


KINDS = [("robot", "image"), ("robot", "video"), ("sensors", "image"), ("sensors", "video"), ("sensors", "none")]
Make = Callable[[str, str], Exported]


@pytest.fixture(scope="session")
def exported(tmp_path_factory, bags, spec) -> Make:
    """Datasets by recordings and media. `robot`: voxels; `sensors`: masks, gray and depth images, a window."""
    folder = tmp_path_factory.mktemp("records")
    sensors = tuple(sensor_recording(folder / f"sensors_{seed}", seed) for seed in (1, 2))
    recordings = {"robot": (tuple(bags), spec), "sensors": (sensors, sensor_spec())}

    @cache
    def make(name: str, media: str) -> Exported:
        found, own = recordings[name]
        own = own.without_cameras() if media == "none" else own
        options = DatasetOptions(formats=RECORD_FORMATS, task=TASK, robot_type="panda", media=media)
        result = export(found, own, folder / f"{name}_{media}", options)
        paths = [recording.bag for recording in result.recordings for _ in recording.episodes]
        return Exported(result.out, own, tuple(paths), tuple(engine_episodes(result, own)))

    return make
