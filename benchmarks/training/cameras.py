"""Measures trainings on videos that are read from disk, and writes cameras.json and cameras.md.

python -m benchmarks.training.cameras --out benchmarks/results    # about 7 minutes on a GPU with 16 cores
python -m benchmarks.training.cameras --out /tmp/bench --quick    # tiny, to see that it runs

The datasets are exports of synthetic recordings: LeRobot v3.0, two cameras of 480x640 at 30 Hz, as AV1 and as H.264
with a key frame in each 2 and each 30 frames. With `--lerobot PYTHON`, that of an environment with lerobot 0.4.4, the
reader of LeRobot is measured beside a DataLoader that seeks with PyAV in each sample. The files are written after each
figure.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks import recordings
from benchmarks.episodes import OnDevice
from benchmarks.processes import end_on_sigterm
from benchmarks.report import argument_parser, json_of, tell
from benchmarks.training.measured import Row, Run, Sources, endless, machine, rows_of, train_for, wait_for, write
from benchmarks.training.order import nearness
from robocache_ros import normalize_image
from robocache_ros.datasets import ShuffledRuns, TimelineDataset, TimelineLoader, Window
from robocache_ros.datasets.loader import cache as loader_cache
from robocache_ros.datasets.loader.order import BatchOrder
from robocache_ros.datasets.loader.timeline_loader import RunOrder
from robocache_ros.extras import need
from robocache_ros.formats.lerobot.read import read_layout
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PRESETS, PolicyConfig
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_data import (
    DataInfo,
    data_info,
    default_workers,
    open_for_training,
    shuffled_order,
    training_loader,
)
from robocache_ros.training.training_options import TrainingOptions
from test.exporting import export

CAMERAS, FPS, HORIZON = 2, recordings.CAMERA_HZ, 16
BATCH = 64  # of the loaders; trainings have the default of examples/train_policy.py
TRAINING_BATCH = 32
WINDOW = Window(2, HORIZON, n_images=1)  # as of examples/train_policy.py
# All readers are measured on the first one, and trainings on the first two.
DATASETS = {"av1, g=2": ("av1", 2), "h264, g=30": ("h264", 30), "h264, g=2": ("h264", 2), "av1, g=30": ("av1", 30)}
MODES: Mapping[str, Mapping[str, Any]] = {
    "no cache": {"cache": "none"},
    "defaults": {},
    "shuffle=True, no cache": {"shuffle": True, "cache": "none"},
}
RUNS = {
    "480x640, g=2": ShuffledRuns(8, 2327),
    "480x640, g=30": ShuffledRuns(15, 2327),
    "224x224, g=2": ShuffledRuns(8, 8192),
    "default of ShuffledRuns": ShuffledRuns(),
}
TRAINED = 2
PEER = "DataLoader that seeks with PyAV in each sample"
HALF = "half of it cached"


def make_recordings(folder: Path, count: int, seconds: float, size: int | None) -> list[Path]:
    """Write recordings of different scenes, one per process."""
    paths = [folder / f"recording_{number:02d}" for number in range(count)]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(_record, seconds=seconds, size=size), paths, range(count)))
    return paths


def _record(path: Path, number: int, *, seconds: float, size: int | None) -> None:
    recordings.write(path, seconds, CAMERAS, size=size, scene=number)


class SeekingDataset(Dataset[dict[str, Tensor]]):
    """Samples of a LeRobot dataset, as they are commonly read: each one seeks in its videos, which stay open."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._layout = folder, read_layout(folder)
        self._ends = list(accumulate(place.length for place in self._layout.episodes))
        table = need("pyarrow.parquet", "datasets").read_table(folder / "data")
        self._columns = {
            name: np.stack(table[name].to_numpy()).astype(np.float32) for name in ("observation.state", "action")
        }
        self._open: dict[Path, Any] = {}

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        number = bisect_right(self._ends, index)
        place = self._layout.episodes[number]
        begin, last = self._ends[number] - place.length, self._ends[number] - 1
        images = [
            self._image(self._folder / file, start_s + (index - begin) / self._layout.fps)
            for file, start_s in place.videos.values()
        ]
        observed, acted = index + np.arange(1 - WINDOW.n_obs, 1), index + np.arange(HORIZON)
        return {
            "vision": torch.from_numpy(np.stack(images)),
            "proprio": torch.from_numpy(self._columns["observation.state"][observed.clip(begin, last)]),
            "actions": torch.from_numpy(self._columns["action"][acted.clip(begin, last)]),
            "action_is_pad": torch.from_numpy(acted > last),
        }

    def _image(self, path: Path, time_s: float) -> NDArray[np.uint8]:
        if path not in self._open:
            container = need("av", "datasets").open(str(path))
            container.streams.video[0].codec_context.thread_count = 1
            self._open[path] = container
        container = self._open[path]
        stream = container.streams.video[0]
        container.seek(round((time_s - 0.25 / FPS) / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            if frame.time >= time_s - 0.25 / FPS:
                pixels: NDArray[np.uint8] = frame.to_ndarray(format="rgb24")
                return pixels
        raise ValueError(f"{path}: no frame at {time_s:.3f} s")


def seeking_loader(folder: Path, batch: int, workers: int, device: torch.device) -> OnDevice:
    """Return the batches of the peer: pinned memory, two batches per worker, workers that stay."""
    options: dict[str, Any] = {"prefetch_factor": 2, "persistent_workers": True} if workers else {}
    pinned = device.type == "cuda"
    data: Any = SeekingDataset(folder)
    return OnDevice(
        DataLoader(data, batch, shuffle=True, num_workers=workers, pin_memory=pinned, drop_last=True, **options), device
    )


class Normalised:
    """Batches of the peer as a policy of this package needs them, converted on the device."""

    def __init__(self, batches: OnDevice, info: DataInfo, device: torch.device) -> None:
        self._batches = batches
        self._scales = {
            key: tuple(torch.tensor(each[name], device=device) for name in ("mean", "std"))
            for key, each in info.statistics.items()
        }

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batch in self._batches:
            for key, (mean, std) in self._scales.items():
                batch[key] = (batch[key] - mean) / std
            images = batch["vision"].movedim(-1, -3).contiguous()
            batch["vision"] = normalize_image(images, "imagenet", torch.float32)[:, None]
            yield batch


def samples_per_s(batches: Any, seconds: float, device: torch.device) -> float:
    """Return the samples per second of batches of `vision`, over some seconds after the first batches.

    An automatic cache is filled before, and a loader without one has read as far ahead as it does.
    """
    iterator, skip = endless(batches), 40 if isinstance(batches, TimelineLoader) else 8
    for _ in range(skip):
        next(iterator)
    wait_for(device)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        count += len(next(iterator)["vision"])
        if device.type == "cuda":  # the clock must not run ahead
            torch.cuda.current_stream().synchronize()
    return count / (time.perf_counter() - start)


class Measurement:
    """The figures of one machine, as rows that are written as soon as they are known."""

    def __init__(self, out: Path, record: dict[str, Any], seconds: float, workers: int, policy: str) -> None:
        self._out, self._record, self._seconds, self._workers, self._policy = out, record, seconds, workers, policy
        self._device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        self._rows: list[Row] = []

    def add(self, part: str, what: str, value: float | None, unit: str, note: str = "") -> None:
        """Add a row, and write the files."""
        self._add(Row(part, what, value, unit, note=note))

    def _add(self, *rows: Row) -> None:
        self._rows += rows
        write(self._out, "cameras", "Trainings on videos", self._record, self._rows)

    @contextmanager
    def _part(self, part: str, what: str) -> Iterator[None]:
        """Report a failure as a row, and go on."""
        tell(f"{part}: {what}")
        try:
            yield
        except Exception as error:
            self.add(part, what, None, "", f"failed: {type(error).__name__}: {error}"[:200])

    def orders(self) -> None:
        """Compare orders with a full shuffle: the variance of the means of batches, over independent samples'."""
        ends = np.cumsum(np.full(180, 600))
        length, part = int(ends[-1]), "Order of batches of 32, of 180 episodes of 20 s at 30 Hz"
        found: dict[str, BatchOrder] = {"full shuffle": BatchOrder(length, TRAINING_BATCH, True, 1)}
        for what, runs in RUNS.items():
            found[f"{what}: runs of {runs.length}, buffer {runs.buffer:,}"] = RunOrder(
                length, TRAINING_BATCH, True, 1, runs=runs, ends=ends
            )
        for what, order in found.items():
            near = nearness(order, ends)
            note = (
                f"each sample once an epoch: {near.once}; of a batch, {near.alike:.2f} others within 1 s of a sample, "
                f"{near.of_episode:.2f} of its episode; correlation with the next batch {near.correlation:.2f}"
            )
            self.add(part, f"variance of the means, {what}", near.variance, "x", note)

    def loaders(self, name: str, folder: Path, lerobot: str | None, *, every: bool) -> None:
        """Measure batches of uint8 images, on the device: of the peer and without a cache, or of every reader."""
        part, rates = f"Batches of {BATCH}, {name}, {self._workers} workers", {}
        dataset = self._dataset(folder)
        makers: dict[str, Callable[[], Any]] = {
            PEER: lambda: seeking_loader(folder, BATCH, self._workers, self._device)
        }
        for mode, given in MODES.items() if every else islice(MODES.items(), 1):
            makers[f"TimelineLoader, {mode}"] = partial(self._loader, dataset, given)
        for what, make in makers.items():
            with self._part(part, what):
                batches = make()
                rates[what] = samples_per_s(batches, self._seconds, self._device)
                self.add(part, what, rates[what], "samples/s", self._times(what, rates))
            if isinstance(batches, TimelineLoader):
                batches.close()
            del batches
            torch.cuda.empty_cache()
        if lerobot is not None and every:
            with self._part(part, "LeRobotDataset"):
                wanted = {"path": str(folder), "cameras": True, "workers": self._workers, "batch": BATCH}
                script = Path(__file__).parents[1] / "loading" / "peer_lerobot.py"
                text = json.dumps({**wanted, "samples": int(1e9), "seconds": self._seconds})
                try:
                    found = json_of(lerobot, script, text)
                except SystemExit as error:
                    raise RuntimeError(str(error)[-100:]) from None
                for what, rate in found.items():
                    rates[what] = rate
                    self.add(part, what, rate, "samples/s", self._times(what, rates))

    def _times(self, what: str, rates: Mapping[str, float]) -> str:
        return "" if what == PEER or PEER not in rates else f"{rates[what] / rates[PEER]:.2f} x the first"

    def _dataset(self, folder: Path) -> TimelineDataset:
        return open_for_training(folder, rate_hz=FPS, window=WINDOW, vision=True)

    def _loader(self, dataset: TimelineDataset, given: Mapping[str, Any]) -> TimelineLoader:
        arguments = {"shuffle": shuffled_order(dataset), "cache": "auto", **given}
        return TimelineLoader(
            dataset, BATCH, drop_last=True, workers=self._workers, device=self._device, seed=1, **arguments
        )

    def trainings(self, name: str, folder: Path, *, peer: bool) -> None:
        """Measure the policy on the loader with its defaults, without a cache, and on the peer."""
        dataset = self._dataset(folder)
        info = data_info(dataset)
        part = f"{self._policy} with two cameras, batch {TRAINING_BATCH}, bf16, {name}, {self._workers} workers"

        def ours(**given: Any) -> Any:
            return training_loader(
                dataset, info, TRAINING_BATCH, workers=self._workers, device=self._device, seed=1, **given
            )

        makers: dict[str, Callable[[], Any]] = {"defaults": ours, "no cache": partial(ours, cache="none")}
        if peer:
            makers[HALF] = ours
            makers[PEER] = lambda: Normalised(
                seeking_loader(folder, TRAINING_BATCH, self._workers, self._device), info, self._device
            )
        half = len(dataset) * int(dataset[0]["vision"].nbytes) / 2
        for what, make in makers.items():
            room = half / loader_cache.WINDOW_SHARE if what == HALF else None
            with self._part(part, what), self._only_room(room):
                batches = make()
                run = self._train(batches, info)
                self._add(*rows_of(part, what, run, TRAINING_BATCH, f"{run.step_ms:.2f} ms a step"))
            if isinstance(batches, TimelineLoader):
                batches.close()
            del batches
            torch.cuda.empty_cache()

    @contextmanager
    def _only_room(self, nbytes: float | None) -> Iterator[None]:
        """Let caches see so much free memory on the device and none on the host; None: all that is free."""
        free = loader_cache.free_bytes
        if nbytes is not None:
            loader_cache.free_bytes = lambda place: int(nbytes) if place == self._device else 0
        try:
            yield
        finally:
            loader_cache.free_bytes = free

    def _train(self, batches: Any, info: DataInfo) -> Run:
        torch.manual_seed(0)
        config = PolicyConfig(
            proprio=info.proprio,
            actions=info.actions,
            n_obs=WINDOW.n_obs,
            horizon=HORIZON,
            cameras=info.cameras,
            **PRESETS[self._policy],
        )
        sources = Sources()
        sources.add("", batches)
        sources.choose("")
        bf16 = self._device.type == "cuda"
        trainer = Trainer(make_policy(config), sources, TrainingOptions(bf16=bf16), self._device)
        # The cache is filled after 32 batches, and the buffer of runs after about 73.
        return train_for(trainer, self._seconds, warm_up=80 if isinstance(batches, TimelineLoader) else 12)


def main() -> None:
    """Measure, and write the results."""
    end_on_sigterm()
    parser = argument_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="Tiny data and a tiny policy: no figure means anything.")
    parser.add_argument("--record-s", type=float, default=20.0, help="Seconds of each recording; there is one a core.")
    parser.add_argument("--seconds", type=float, default=5.0, help="Of each measurement.")
    parser.add_argument("--dataset", action="append", choices=DATASETS, help="This one only; may be repeated.")
    parser.add_argument("--lerobot", default=os.environ.get("ROBOCACHE_LEROBOT_PYTHON"), help="Python with lerobot.")
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    count, record_s, seconds, workers = cores, given.record_s, given.seconds, default_workers()
    if given.quick:
        count, record_s, seconds, workers = 2, 3.0, 0.1, 1
    record: dict[str, Any] = {"machine": machine(), "quick": given.quick, "took_s": {}}
    measured = Measurement(given.out, record, seconds, workers, "tiny" if given.quick else "act-13m")
    measured.orders()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        tell(f"{count} recordings of {record_s:g} s")
        paths = make_recordings(Path(folder), count, record_s, 64 if given.quick else None)
        record["took_s"]["recordings"] = round(time.perf_counter() - start, 1)
        for number, name in enumerate(given.dataset or DATASETS):
            codec, gop = DATASETS[name]
            start, out = time.perf_counter(), Path(folder) / f"{codec}_{gop}"
            tell(f"export: {name}")
            export(paths, load_spec(recordings.spec(CAMERAS)), out, DatasetOptions(codec=codec, gop=gop), jobs=cores)
            taken = time.perf_counter() - start
            size = sum(file.stat().st_size for file in out.rglob("*.mp4"))
            minutes = count * record_s / 60
            about = f"{minutes:.1f} minutes, {size / 1e6:.0f} MB of video, by {cores} processes"
            measured.add("Datasets: two cameras of 480x640 at 30 Hz", f"export, {name}", taken, "s", about)
            measured.loaders(name, out, given.lerobot, every=number == 0)
            if number < TRAINED:
                measured.trainings(name, out, peer=number == 0)
    print((given.out / "cameras.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
