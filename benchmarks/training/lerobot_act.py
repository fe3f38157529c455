"""Trains LeRobot's ACT on the batches of LeRobotDataset and of TimelineLoader, and writes lerobot_act.json and .md.

python -m benchmarks.training.lerobot_act --out benchmarks/results    # on a GPU, with 16 idle cores
python -m benchmarks.training.lerobot_act --out /tmp/bench --quick    # tiny, to see that it runs

Needs lerobot 0.4.4. The policy is the same for all: two cameras, ResNet-18, the defaults of LeRobot's configuration,
bfloat16. Without `--dataset` it trains on an export of synthetic recordings: LeRobot v3.0, two cameras of 480x640 at
30 Hz as AV1 with a key frame in each 2 frames. The files are written after each figure.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks import recordings
from benchmarks.loading.peer_lerobot import lerobot_dataset, prepare
from benchmarks.processes import end_on_sigterm
from benchmarks.report import argument_parser, tell
from benchmarks.training.cameras import CAMERAS, TRAINING_BATCH, make_recordings
from benchmarks.training.measured import Row, Run, endless, machine, rows_of, train_for, write
from robocache_ros.datasets import LoaderOptions, TimelineLoader, Window
from robocache_ros.monitoring import DataWaitMeter
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.training.training_data import data_info, open_for_training, training_loader
from test.exporting import export

WORKERS = (8, 16)
PEER = "LeRobotDataset"


class ActTraining:
    """A training of a policy of LeRobot, as `train_for` measures it."""

    def __init__(self, policy: Any, before: Any, batches: Iterator[Mapping[str, Any]], device: torch.device) -> None:
        self.device, self.step, self.data_wait = device, 0, DataWaitMeter(device)
        self._policy, self._before, self._batches = policy, before, batches
        self._optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5, weight_decay=1e-4)

    def train_step(self) -> None:
        """Run a step."""
        with self.data_wait.waiting():
            batch = self._before(next(self._batches))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss, _ = self._policy.forward(batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._policy.parameters(), 10.0)
        self._optimizer.step()
        self.step += 1


class Measurement:
    """Trainings of one policy on one dataset with different readers."""

    def __init__(
        self, folder: Path, device: torch.device, seconds: float, batch: int, options: Mapping[str, Any]
    ) -> None:
        self._folder, self._device, self._seconds, self._batch = folder, device, seconds, batch
        prepare()
        self._example: Any = import_module("examples.train_lerobot_policy")
        meta = self._example.LeRobotDatasetMetadata(folder.name, root=folder)
        self._fps = meta.fps
        torch.manual_seed(0)
        self._policy, self._before, _ = self._example.new_policy("act", meta, str(device), options)
        self._horizon = len(self._policy.config.action_delta_indices)
        window = Window(1, self._horizon, n_images=1)
        self._dataset = open_for_training(folder, rate_hz=meta.fps, window=window, vision=True)
        self._normalized = False
        self.decoder = ""  # of LeRobotDataset

    def lerobot(self, workers: int) -> Run:
        """Train on LeRobotDataset in torch's DataLoader, with the options of `lerobot-train`."""
        dataset = lerobot_dataset(str(self._folder), self._horizon, self._fps)
        self.decoder = dataset.video_backend
        loader: Any = DataLoader(
            dataset,
            self._batch,
            shuffle=True,
            num_workers=workers,
            pin_memory=self._device.type == "cuda",
            drop_last=True,
        )
        return self._train(endless(loader), warm_up=8)

    def timeline(self, workers: int, **given: Any) -> Run:
        """Train on TimelineLoader."""
        info = data_info(self._dataset)
        options = LoaderOptions(image_dtype=torch.float32)  # the policy normalizes
        loader: TimelineLoader = training_loader(
            self._dataset, info, self._batch, options=options, workers=workers, statistics=None, device=self._device,
            seed=1, **given,
        )  # fmt: skip
        try:
            return self._train(self._example.rows(loader, info.images), warm_up=80)
        finally:
            loader.close()

    def _train(self, batches: Iterator[Mapping[str, Any]], warm_up: int) -> Run:
        if not self._normalized:
            self._example.normalize_frozen_layers(self._policy, self._before(next(batches)))
            self._normalized = True
        training = ActTraining(self._policy, self._before, batches, self._device)
        try:
            return train_for(training, self._seconds, min(warm_up, 2) if self._seconds < 1 else warm_up)
        finally:
            torch.cuda.empty_cache()


def main() -> None:
    """Measure, and write the results."""
    end_on_sigterm()
    parser = argument_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="Tiny data and a tiny policy: no figure means anything.")
    parser.add_argument("--dataset", type=Path, help="A LeRobot v3.0 dataset with images.")
    parser.add_argument("--record-s", type=float, default=20.0, help="Seconds of each recording; there are 16.")
    parser.add_argument("--seconds", type=float, default=10.0, help="Of each measurement.")
    parser.add_argument("--batch-size", type=int, default=TRAINING_BATCH, help="Samples of a batch.")
    given = parser.parse_args()
    count, record_s, seconds, batch = 16, given.record_s, given.seconds, given.batch_size
    workers: Sequence[int] = WORKERS
    options: dict[str, Any] = {}
    if given.quick:
        count, record_s, seconds, batch, workers = 2, 3.0, 0.1, 4, [1]
        options = {"dim_model": 32, "dim_feedforward": 32, "chunk_size": 8, "n_action_steps": 8, "latent_dim": 4}
    record: dict[str, Any] = {"machine": machine(), "quick": given.quick}
    rows: list[Row] = []
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        about, dataset = str(given.dataset), given.dataset
        if dataset is None:
            tell(f"{count} recordings of {record_s:g} s, and their export")
            about, dataset = "two cameras of 480x640 as AV1, g=2", Path(folder) / "lerobot"
            paths = make_recordings(Path(folder), count, record_s, 64 if given.quick else None)
            stored = DatasetOptions(codec="av1", gop=2)
            export(paths, load_spec(recordings.spec(CAMERAS)), dataset, stored, jobs=record["machine"]["cores"])
        measured = Measurement(dataset, device, seconds, batch, options)
        for number in workers:
            part = f"ACT of LeRobot, {about}, batch {batch}, {number} workers"
            runs = {
                PEER: partial(measured.lerobot, number),
                "TimelineLoader, no cache": partial(measured.timeline, number, cache="none"),
                "TimelineLoader, defaults": partial(measured.timeline, number),
            }
            rates: dict[str, float] = {}
            for what, train in runs.items():
                tell(f"{number} workers: {what}")
                run = train()
                rates[what] = batch / run.step_ms * 1e3
                note = f"{run.step_ms:.1f} ms a step; {rates[what] / rates[PEER]:.2f} x the first"
                note += f"; {measured.decoder}" if what == PEER else ""
                rows += rows_of(part, what, run, batch, note)
                write(given.out, "lerobot_act", "Trainings of LeRobot's ACT", record, rows)
    print((given.out / "lerobot_act.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
