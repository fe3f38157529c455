"""Small datasets of every format, and the outcome of reading damaged ones."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.datasets import (
    CALVINDataset,
    LeRobotTimelineDataset,
    RoboMimicDataset,
    RTXDataset,
    TimelineDataset,
    TimelineLoader,
    open_dataset,
)
from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.formats import registry
from robocache_ros.formats.rlds.tfrecord import BytesList, RecordWriter, encode_example
from robocache_ros.formats.validate import validate
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export
from test.fuzz.recordings import DAMAGES, damaged

# Small undamaged datasets of every format that is read.


EPISODES, STEPS, SIZE = 2, 6, 16


def _state(episode: int) -> NDArray[np.float32]:
    return (episode + np.arange(STEPS * 3).reshape(STEPS, 3) / 7).astype(np.float32)


def _images(episode: int) -> NDArray[np.uint8]:
    return np.random.default_rng(episode).integers(0, 256, (STEPS, SIZE, SIZE, 3), np.uint8)


def _files(episode: int, kind: str) -> list[bytes]:
    found = []
    for image in _images(episode):
        file = io.BytesIO()
        need("PIL.Image", "datasets").fromarray(image).save(file, kind)
        found.append(file.getvalue())
    return found


def write_rlds(folder: Path, *, compressed: bool = False) -> None:
    """Write a TFDS dataset, a record per episode in one file."""
    folder.mkdir(parents=True)
    tree: dict[str, Any] = {
        "observation": _features({"state": _tensor(3), "image": {"image": {"shape": {}}}}),
        "action": _tensor(3),
        "is_first": {"tensor": {"shape": {}, "dtype": "bool", "encoding": "none"}},
        "language_instruction": {"text": {}},
    }
    steps = _features({"steps": {"sequence": {"feature": _features(tree), "length": "-1"}}})
    (folder / "features.json").write_text(json.dumps(steps), encoding="utf-8")
    split = {"name": "train", "shardLengths": [str(EPISODES)], "numBytes": "0"}
    info = {"name": "bridge", "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info), encoding="utf-8")
    path = folder / "bridge-train.tfrecord-00000-of-00001"
    writer = RecordWriter(path)
    for episode in range(EPISODES):
        values: dict[str, Any] = {
            "steps/observation/state": _state(episode),
            "steps/observation/image": BytesList(_files(episode, "jpeg")),
            "steps/action": -_state(episode),
            "steps/is_first": np.arange(STEPS) == 0,
            "steps/language_instruction": BytesList([b"lift"] * STEPS),
        }
        writer.write(*encode_example(values))
    writer.close()
    if compressed:
        path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def write_robomimic(folder: Path, *, compressed: bool = False) -> None:
    """Write an HDF5 file as robomimic does."""
    folder.mkdir(parents=True)
    options = {"compression": "gzip"} if compressed else {}
    with need("h5py", "datasets").File(folder / "lift.hdf5", "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}})
        data.attrs["total"] = EPISODES * STEPS
        for episode in range(EPISODES):
            demo = data.create_group(f"demo_{episode}")
            demo.attrs["num_samples"] = STEPS
            demo.create_dataset("actions", data=-_state(episode).astype(np.float64), **options)
            demo.create_dataset("rewards", data=np.zeros(STEPS), **options)
            demo.create_dataset("obs/state", data=_state(episode).astype(np.float64), **options)
            demo.create_dataset("obs/front_image", data=_images(episode), **options)
        file["mask/train"] = np.array([f"demo_{k}" for k in range(EPISODES)], "S")


def write_lerobot(folder: Path, *, media: str = "image", version: str = "v3.0") -> None:
    """Write a LeRobot dataset; `media` is image or video, `version` v3.0 or v2.1."""
    (folder / "meta").mkdir(parents=True)
    shape: dict[str, Any] = {"dtype": "float32", "shape": [3]}
    front: dict[str, Any] = {"dtype": media, "shape": [SIZE, SIZE, 3]}
    chunk = "chunk-{chunk_index:03d}/file-{file_index:03d}"
    if version != "v3.0":
        chunk = "chunk-{episode_chunk:03d}/episode_{episode_index:06d}"
    info = {
        "codebase_version": version,
        "fps": 50,
        "chunks_size": 1000,
        "features": {"observation.state": shape, "action": shape, "observation.images.front": front},
        "data_path": f"data/{chunk}.parquet",
        "video_path": f"videos/{{video_key}}/{chunk}.mp4",
    }
    (folder / "meta" / "info.json").write_text(json.dumps(info), encoding="utf-8")
    tables = [_table(episode, media) for episode in range(EPISODES)]
    if version == "v3.0":
        _write_v3(folder, tables, media)
    else:
        _write_v2(folder, tables, media)


def _table(episode: int, media: str) -> Any:
    arrow = need("pyarrow", "datasets")

    def vectors(values: NDArray[np.float32]) -> Any:
        return arrow.FixedSizeListArray.from_arrays(values.reshape(-1), 3)

    columns = {
        "observation.state": vectors(_state(episode)),
        "action": vectors(-_state(episode)),
        "episode_index": arrow.array(np.full(STEPS, episode)),
        "task_index": arrow.array(np.zeros(STEPS, np.int64)),
    }
    if media == "image":
        files = [{"bytes": data, "path": None} for data in _files(episode, "png")]
        columns["observation.images.front"] = arrow.array(
            files, arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
        )
    return arrow.table(columns)


def _write_v3(folder: Path, tables: list[Any], media: str) -> None:
    arrow, parquet = need("pyarrow", "datasets"), need("pyarrow.parquet", "datasets")
    for name in ("data", "meta/episodes"):
        (folder / name / "chunk-000").mkdir(parents=True)
    parquet.write_table(arrow.concat_tables(tables), folder / "data/chunk-000/file-000.parquet")
    rows = []
    for episode in range(EPISODES):
        row = {"episode_index": episode, "length": STEPS, "data/chunk_index": 0, "data/file_index": 0}
        row |= {"dataset_from_index": episode * STEPS, "dataset_to_index": (episode + 1) * STEPS}
        if media == "video":
            name = "videos/observation.images.front"
            row |= {f"{name}/chunk_index": 0, f"{name}/file_index": 0}
            row |= {f"{name}/from_timestamp": episode * STEPS / 50}  # type: ignore[dict-item]
        rows.append(row)
    parquet.write_table(arrow.Table.from_pylist(rows), folder / "meta/episodes/chunk-000/file-000.parquet")
    parquet.write_table(arrow.table({"task_index": [0], "task": ["lift"]}), folder / "meta/tasks.parquet")
    if media == "video":
        images = np.concatenate([_images(episode) for episode in range(EPISODES)])
        _write_video(folder / "videos/observation.images.front/chunk-000/file-000.mp4", images)


def _write_v2(folder: Path, tables: list[Any], media: str) -> None:
    parquet = need("pyarrow.parquet", "datasets")
    (folder / "data/chunk-000").mkdir(parents=True)
    rows = [json.dumps({"episode_index": k, "tasks": ["lift"], "length": STEPS}) for k in range(EPISODES)]
    (folder / "meta" / "episodes.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (folder / "meta" / "tasks.jsonl").write_text('{"task_index": 0, "task": "lift"}', encoding="utf-8")
    for episode, table in enumerate(tables):
        parquet.write_table(table, folder / f"data/chunk-000/episode_{episode:06d}.parquet")
        if media == "video":
            path = folder / f"videos/observation.images.front/chunk-000/episode_{episode:06d}.mp4"
            _write_video(path, _images(episode))


def _write_video(path: Path, images: NDArray[np.uint8]) -> None:
    av = need("av", "datasets")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=Fraction(50))  # in every FFmpeg
        stream.width, stream.height, stream.pix_fmt = SIZE, SIZE, "yuv420p"
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        container.mux(stream.encode())


def write_calvin(folder: Path) -> None:
    """Write a split of CALVIN: an npz file per step, and annotations."""
    (folder / "lang_annotations").mkdir(parents=True)
    ranges = np.array([[STEPS * k, STEPS * k + STEPS - 1] for k in range(EPISODES)])
    np.save(folder / "ep_start_end_ids.npy", ranges)
    for step in range(EPISODES * STEPS):
        episode, row = divmod(step, STEPS)
        np.savez(
            folder / f"episode_{step:07d}.npz",
            rgb_static=_images(episode)[row],
            rgb_gripper=_images(episode + EPISODES)[row],
            robot_obs=np.concatenate([_state(episode)[row]] * 5),
            rel_actions=np.arange(7) / 8 + step,
        )
    language = {"ann": ["lift"] * EPISODES, "task": ["lift"] * EPISODES, "emb": np.zeros((EPISODES, 1, 8))}
    annotations: Any = {
        "language": language,
        "info": {"indx": [tuple(each) for each in ranges.tolist()], "episodes": []},
    }
    np.save(folder / "lang_annotations" / "auto_lang_ann.npy", annotations, allow_pickle=True)


Opener = Callable[[Path], TimelineDataset]


def _open_robomimic(folder: Path) -> TimelineDataset:
    return RoboMimicDataset(folder / "lift.hdf5", obs_modality="image", mask="train")


def write_hdf5(folder: Path) -> None:
    """Write trajectories of one's own."""
    folder.mkdir(parents=True)
    with need("h5py", "datasets").File(folder / "own.hdf5", "w") as file:
        for episode in range(EPISODES):
            for name, values in (
                ("joints", _state(episode)),
                ("actions", -_state(episode)),
                ("front", _images(episode)),
            ):
                file[f"{episode}/{name}/values"] = values
                file[f"{episode}/{name}/stamps_ns"] = np.arange(STEPS) * 20_000_000


# By name: how it is written, how it is opened, and whether checksums cover the values of its episodes.
FORMATS: dict[str, tuple[Callable[[Path], None], Opener, bool]] = {
    "RLDS": (write_rlds, RTXDataset, True),
    "RLDS, gzip": (partial(write_rlds, compressed=True), RTXDataset, True),
    "robomimic": (write_robomimic, _open_robomimic, False),
    "robomimic, gzip": (partial(write_robomimic, compressed=True), _open_robomimic, False),
    "LeRobot v3.0, images": (write_lerobot, LeRobotTimelineDataset, False),
    "LeRobot v3.0, video": (partial(write_lerobot, media="video"), LeRobotTimelineDataset, False),
    "LeRobot v2.1, video": (partial(write_lerobot, media="video", version="v2.1"), LeRobotTimelineDataset, False),
    "CALVIN": (write_calvin, CALVINDataset, True),
}


# Every format that is registered with a writer and a reader is exported, and damaged too. The other readers have a
# dataset above.
ROOT = Path(__file__).parents[2]
WRITTEN = {"rlds", "robomimic", "lerobot", "lerobot21", "calvin", "hdf5"}
EXPORTED = tuple(
    name
    for name, each in registry.FORMATS.items()
    if each.write and each.read and (name != "delta" or find_spec("deltalake"))
)


@cache
def _exports() -> tempfile.TemporaryDirectory[str]:
    """A short part of the Panda recording in each of these formats."""
    folder = tempfile.TemporaryDirectory(prefix="robocache-exports-")
    with Bag(ROOT / "test" / "data" / "panda_lift") as complete:
        types = {name: topic.type for name, topic in complete.topics.items()}
        start = complete.start_ns + 10**9
        messages = list(complete.messages(None, start, start + 3 * 10**8))
    bag = write_bag(Path(folder.name) / "bag", types, messages)
    options = DatasetOptions(formats=EXPORTED, task="lift", media="image", split_s=0.1)
    export([bag], load_spec(ROOT / "config" / "panda_lift.yaml"), Path(folder.name) / "out", options)
    return folder


def _copy_export(name: str, folder: Path) -> None:
    shutil.copytree(Path(_exports().name) / "out" / name, folder)


def _open_hdf5(folder: Path) -> TimelineDataset:
    return open_dataset("hdf5", folder / "own.hdf5")


# All that are damaged, as `FORMATS`.
DAMAGED: dict[str, tuple[Callable[[Path], None], Opener, bool]] = {
    **FORMATS,
    "HDF5": (write_hdf5, _open_hdf5, False),
    **{f"export: {n}": (partial(_copy_export, n), partial(open_dataset, n), n == "rlds") for n in EXPORTED},
}


def _features(features: dict[str, Any]) -> dict[str, Any]:
    return {"featuresDict": {"features": features}}


def _tensor(size: int) -> dict[str, Any]:
    return {"tensor": {"shape": {"dimensions": [str(size)]}, "dtype": "float32", "encoding": "none"}}


# Damaged datasets: each episode is read as the undamaged one, or refused in one line that names the file.


MAX_S = 20  # of processor time of a case, with the loading of libraries in the first one
MAX_WAIT_S = 120  # of a case that waits without end
MAX_GROWTH_KIB = 1 << 20
LINE = 200  # characters of an error, less the path of the dataset
UNCHECKED = "altered (no checksums)"
GOOD = ("identical", "refused", UNCHECKED)
BAD = ("altered", "long error", "traceback", "crash", "hang", "memory")
HOW = ("missing", *DAMAGES)


@dataclass(frozen=True)
class Case:
    """One damaged file of a dataset."""

    format: str
    damage: str
    seed: int


def cases(count: int) -> list[Case]:
    """`count` cases, evenly over formats and kinds of damage."""
    pairs = [(name, how) for how in HOW for name in DAMAGED]
    return [Case(*pairs[number % len(pairs)], number // len(pairs)) for number in range(count)]


def read(name: str, folder: Path) -> list[str]:
    """The digest of each episode of a dataset; the text of an error where there is none."""
    dataset = DAMAGED[name][1](folder)
    TimelineLoader(dataset, 1)  # refuses an empty dataset
    found = []
    for index in range(len(dataset)):
        try:
            digest = hashlib.sha256()
            for key, value in sorted(dataset[index].items()):
                digest.update(repr((key, value)).encode() if isinstance(value, (str, int)) else value.numpy().tobytes())
            found.append(digest.hexdigest())
        except RoboCacheError as error:
            found.append(f"refused: {error}")
    return found


class Judge:
    """Damages copies of the small datasets in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, 0
        self._files: dict[str, dict[Path, bytes]] = {}
        self.undamaged: dict[str, list[str]] = {}
        for name, (write, _, _) in DAMAGED.items():
            place = self._next()
            write(place)
            paths = sorted(path for path in place.rglob("*") if path.is_file())
            self._files[name] = {path.relative_to(place): path.read_bytes() for path in paths}
            self.undamaged[name] = read(name, place)

    def __call__(self, case: Case) -> tuple[str, str]:
        """The outcome of a case: one of GOOD or BAD, and what was said."""
        place = self._next()
        victim = random.Random(f"{case}").choice(list(self._files[case.format]))
        for path, data in self._files[case.format].items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            if path != victim:
                (place / path).write_bytes(data)
            elif case.damage != "missing":
                (place / path).write_bytes(damaged(data, case.damage, case.seed))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                found = read(case.format, place)
                if case.format.startswith("export: "):
                    validate(place)
        except RoboCacheError as error:
            found = [f"refused: {error}"]
        except Exception:  # what a user would see as a traceback
            return "traceback", f"{victim}: {traceback.format_exc()}"
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > MAX_GROWTH_KIB:
            return "memory", str(victim)
        stated = [f"warning: {each.message}" for each in warned]
        return self._compared(case, victim, [text.replace(str(place), "") for text in (*found, *stated)])

    def _compared(self, case: Case, victim: Path, found: list[str]) -> tuple[str, str]:
        refusals = [text for text in found if text.startswith(("refused: ", "warning: "))]
        if long := [text for text in refusals if len(text) > LINE + len("refused: ") or not text.isprintable()]:
            return "long error", long[0]
        if found == self.undamaged[case.format]:
            return "identical", ""
        others = [text for text in found if text not in (*refusals, *self.undamaged[case.format])]
        stated = any(text.startswith("warning: ") for text in refusals)
        if not refusals or (others and not stated):
            checked = DAMAGED[case.format][2] and victim.suffix not in (".json", ".npy")
            return ("altered" if checked else UNCHECKED), f"{victim}: {len(found)} episodes"
        return "refused", refusals[0]

    def _next(self) -> Path:
        self._made += 1
        return self._folder / f"d{self._made}"  # a new place, because readers keep what they have opened


def _work(connection: Connection, wanted: list[Case]) -> None:
    with tempfile.TemporaryDirectory(prefix="robocache-hostile-") as folder:
        judge = Judge(Path(folder))
        connection.send("ready")
        for case in wanted:
            connection.send(judge(case))


def _outcome(worker: Connection, pid: int | None) -> tuple[str, str]:
    """Wait for the outcome of a case; a worker that computes or waits for too long is a hang."""
    first, end_s = _used_s(pid), time.monotonic() + MAX_WAIT_S
    while not worker.poll(1):
        if _used_s(pid) - first > MAX_S or time.monotonic() > end_s:
            return "hang", f"{MAX_S} s"
    outcome, said = worker.recv()
    return outcome, said


def _used_s(pid: int | None) -> float:
    """The processor time of a process so far; 0 where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def outcomes(wanted: list[Case]) -> Iterator[tuple[Case, str, str]]:
    """The outcome of each case. A process that crashes or hangs in a library is replaced."""
    context = multiprocessing.get_context("spawn")
    while wanted:
        mine, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(there, wanted))
        process.start()
        there.close()
        try:
            mine.recv()  # without which every case would count as a crash
        except EOFError:
            raise RuntimeError("the undamaged datasets cannot be read") from None
        try:
            while wanted:
                outcome, said = _outcome(mine, process.pid)
                yield wanted[0], outcome, said
                wanted = wanted[1:]
                if outcome == "hang":
                    break
        except EOFError:
            process.join()
            yield wanted[0], "crash", f"exit code {process.exitcode}"
            wanted = wanted[1:]
        finally:
            process.kill()
            process.join()


def run(count: int) -> dict[str, Any]:
    """Damage `count` datasets and count the outcomes.

    Returns:
        `rows`: by format, how often each outcome came; `failures`: up to 20 cases with an outcome that must not be.
    """
    table: dict[str, Counter[str]] = {name: Counter() for name in DAMAGED}
    failures: list[dict[str, Any]] = []
    for case, outcome, said in outcomes(cases(count)):
        table[case.format][outcome] += 1
        if outcome in BAD and len(failures) < 20:
            failures.append({"case": [case.format, case.damage, case.seed], "outcome": outcome, "said": said})
    rows = [{"format": name, **{word: counts[word] for word in (*GOOD, *BAD)}} for name, counts in table.items()]
    return {"count": count, "rows": rows, "failures": failures}
