"""The data of a training: a dataset of any format as batches, with what the policy must know about it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robocache_ros.datasets import (
    LoaderOptions,
    ShuffledRuns,
    TimelineDataset,
    TimelineLoader,
    Window,
    dataset_statistics,
    open_dataset,
)
from robocache_ros.datasets.timeline_dataset import ResizedFrames
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.images import VideoFrames
from robocache_ros.formats.read import Stream
from robocache_ros.training.policies.policy_config import check_size, check_sizes

# Files by which a format is known.
SIGNS = {
    "lerobot": ("meta/info.json",),
    "rlds": ("dataset_info.json", "*/dataset_info.json", "*/*/dataset_info.json"),
    "calvin": ("ep_start_end_ids.npy", "*/ep_start_end_ids.npy"),
    "robomimic": ("*.hdf5",),
    "diffusion_policy": ("replay_buffer.zarr", "meta/episode_ends"),
    "webdataset": ("*.tar",),
    "mcap": ("episode_000000/*.mcap",),
    "delta": ("ticks/_delta_log",),
}
SPLITS = {"rlds": "split", "calvin": "split", "robomimic": "mask"}  # the option that chooses a part of the episodes
WITHOUT = {
    "proprio": "use a dataset with vectors of observations",
    "actions": "call them `actions` in HDF5 of your own, give commands `role: action` in the spec, or export with "
    "--action next-observation",
}
CONSTANT = 1e-5  # a column whose standard deviation is below it is constant, and is not scaled
LARGEST_FLOAT, SMALLEST_STD = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny
NORMALIZED_IMAGES = LoaderOptions(image_dtype=torch.float32, image_normalize="imagenet")  # what policies are given
Statistics = dict[str, dict[str, list[float]]]
RANGES = ("min", "max", "q01", "q99")  # of each column, beside the mean and std by which it is normalised
SAMPLES = 32  # that `data_info` looks at, for what it knows of the validity and the images of streams


@dataclass(frozen=True)
class DataInfo:
    """What a policy must know about its data, in plain types that a checkpoint stores.

    Attributes:
        streams: columns of each stream of `proprio`, in their order.
        actions: columns of `actions`.
        cameras: images of each key of a batch.
        statistics: mean and std of `proprio` and `actions`.
        rate_hz: of the ticks.
        images: the names of the images of each key of `cameras`, in their order, as a spec names their streams.

    What `robocache doctor` compares with a robot; empty or None in a checkpoint of an earlier version:

    Attributes:
        columns: names of the columns of each stream of `proprio` and `actions`, in their order.
        ranges: `RANGES` of `proprio` and `actions`.
        samples: by stream, of a few samples: `valid`, the share with a value, and the median `age_ms`; of images also
            `size`, and `mean` and `std` of the channels in 0..1.
        action_offset: ticks from an observation to its first action, without that of the labels of the dataset.
        spec: the spec of an export of this project, with its section `dataset`.
    """

    streams: dict[str, int]
    actions: int
    cameras: dict[str, int]
    statistics: Statistics
    rate_hz: int
    images: dict[str, list[str]] = field(default_factory=dict)
    columns: dict[str, list[str]] = field(default_factory=dict)
    ranges: Statistics = field(default_factory=dict)
    samples: dict[str, dict[str, Any]] = field(default_factory=dict)
    action_offset: int | None = None
    spec: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_sizes("data: streams", self.streams)
        check_sizes("data: cameras", self.cameras)
        check_size("data: actions", self.actions)
        check_size("data: rate_hz", self.rate_hz)
        _check_images(self.cameras, self.images)
        columns = {"proprio": self.proprio, "actions": self.actions}
        if not isinstance(self.statistics, dict) or set(self.statistics) != set(columns):
            raise RoboCacheError("data: statistics are not those of proprio and actions; give both")
        for key, count in columns.items():
            _check_scale(f"data: statistics of {key}", self.statistics[key], ("mean", "std"), count)
            if self.ranges:
                _check_scale(f"data: ranges of {key}", self.ranges.get(key), RANGES, count)
        _check_details(self)

    @property
    def proprio(self) -> int:
        """Columns of `proprio`."""
        return sum(self.streams.values())


def _check_images(cameras: Mapping[str, int], images: object) -> None:
    """Refuse what is not the names of the images; a checkpoint of an earlier version has none."""
    if not isinstance(images, dict) or (images and set(images) != set(cameras)):
        raise RoboCacheError("data: images are not those of cameras; name the images of each key")
    for key, names in images.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise RoboCacheError(f"data: images of {printable(key, 40)} are not names; give a list of them")
        if len(names) != cameras[key]:
            raise RoboCacheError(
                f"data: {len(names)} names of {cameras[key]} images of {printable(key, 40)}; name each"
            )


def _check_details(info: DataInfo) -> None:
    """Refuse what is not of the types that are stated."""
    names = info.columns.values() if isinstance(info.columns, dict) else [None]
    if not all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in names):
        raise RoboCacheError("data: columns are not names by stream; give a list for each")
    for name, about in info.samples.items() if isinstance(info.samples, dict) else [("samples", None)]:
        values = about.values() if isinstance(about, dict) else [None]
        flat = [number for value in values for number in (value if isinstance(value, list) else [value])]
        if not all(type(number) in (int, float) for number in flat):
            raise RoboCacheError(f"data: samples: {printable(name, 40)} has no numbers by name; give them")
    if info.action_offset is not None and type(info.action_offset) is not int:
        raise RoboCacheError(f"data: action_offset is {printable(info.action_offset, 30)}; give a number of ticks")
    if not isinstance(info.spec, dict):
        raise RoboCacheError(f"data: spec: a {type(info.spec).__name__}; give the keys of a spec")


def _check_scale(where: str, scale: object, wanted: tuple[str, ...], columns: int) -> None:
    """Refuse what is not such numbers of some columns, as float32 has them."""
    if not isinstance(scale, dict) or set(scale) != set(wanted):
        raise RoboCacheError(f"{where} are not {', '.join(wanted[:-1])} and {wanted[-1]}; give them")
    for name, values in scale.items():
        if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
            raise RoboCacheError(f"{where}: {name} is not a list of numbers; give one")
        if len(values) != columns:
            raise RoboCacheError(f"{where}: {name} of {len(values)} columns, not {columns}; give one for each")
        least = SMALLEST_STD if name == "std" else -LARGEST_FLOAT
        wrong = next((i for i, value in enumerate(values) if not least <= value <= LARGEST_FLOAT), None)
        if wrong is not None:
            value = printable(values[wrong], 30)
            raise RoboCacheError(f"{where}: {name} of column {wrong} is {value}; look for wrong values in the data")


def open_for_training(
    path: str | Path,
    *,
    file_format: str = "auto",
    rate_hz: float = 50.0,
    window: Window,
    vision: bool = False,
    split: str | None = None,
    **options: Any,
) -> TimelineDataset:
    """Open a dataset as windows.

    Args:
        path: the dataset.
        file_format: a name that `open_dataset` knows; auto: one of `SIGNS`, by the files.
        rate_hz: of the ticks.
        window: the ticks of a sample.
        vision: read the images too.
        split: of rlds and calvin, or the mask of robomimic; None: the default of the format.
        options: of the format, such as `cameras` of LeRobot; see the class of the dataset.

    Errors:
        RoboCacheError: the files are of no known format, or the dataset has none of what is asked for.
    """
    path = Path(path)
    kind = format_of(path) if file_format == "auto" else file_format
    if split is not None:
        if kind not in SPLITS:
            raise RoboCacheError(f"split: {kind} has none, only {', '.join(SPLITS)}; leave it out")
        options[SPLITS[kind]] = split
    if kind == "robomimic":
        path = _only_file(path)
        options.setdefault("obs_modality", "image" if vision else "low_dim")
    elif kind == "calvin" and not vision:
        options.setdefault("cameras", ())
    modalities = ("vision", "proprio", "language") if vision else ("proprio", "language")
    return open_dataset(kind, path, target_hz=rate_hz, modalities=modalities, window=window, **options)


def format_of(path: Path) -> str:
    """Return the format of a dataset, by its files.

    Errors:
        RoboCacheError: none is found.
    """
    if (found := _sign(path)) is not None:
        return found
    if not path.exists():
        raise RoboCacheError(f"{printable(path)}: does not exist; give the folder of a dataset")
    names = [name for name in (*SIGNS, "lerobot21") if _sign(path / name) is not None]
    if names:  # an export of several formats
        raise RoboCacheError(
            f"{printable(path, 60)}: has folders of several formats, {', '.join(names)}; give one of them"
        )
    raise RoboCacheError(
        f"{printable(path)}: not a dataset of {', '.join(SIGNS)}; give its folder, export a recording first"
    )


def _sign(path: Path) -> str | None:
    """The format that the files at a path show, if any."""
    if path.suffix == ".hdf5" and path.is_file():
        return "robomimic"
    return next(
        (name for name, patterns in SIGNS.items() if any(next(path.glob(each), None) for each in patterns)), None
    )


def data_info(dataset: TimelineDataset) -> DataInfo:
    """Return what a policy must know about a dataset of windows. The statistics are computed once and stored.

    Errors:
        RoboCacheError: the dataset is empty, a mixture, or has no proprioception or no actions.
    """
    if not isinstance(dataset, TimelineDataset):
        kind = type(dataset).__name__
        raise RoboCacheError(
            f"dataset: a {kind} has no statistics of its own; make a DataInfo with yours, or train on one dataset"
        )
    if not len(dataset):
        raise RoboCacheError(f"{dataset!r}: has no samples; check the dataset")
    sample = dataset[0]
    for key in ("proprio", "actions"):
        if key not in sample:
            raise RoboCacheError(f"dataset: has no {key}; {WITHOUT[key]}")
    streams = list(dataset.streams_of(dataset.place(0)[0]).streams.values())
    cameras = {key: value.shape[1] if key == "vision" else 1 for key, value in sample.items() if _is_vision(key)}
    names = [stream.name.partition("/")[2] for stream in streams if stream.is_image and _is_vision(stream.name)]
    found = dataset_statistics(dataset)
    statistics = {
        key: {"mean": each["mean"], "std": [1.0 if std < CONSTANT else std for std in each["std"]]}
        for key, each in found.items()
    }
    export = getattr(dataset.source, "export", None)
    return DataInfo(
        {s.name: int(s.values.shape[1]) for s in streams if s.role == "observation" and not s.is_image},  # type: ignore[union-attr]
        sample["actions"].shape[1],
        cameras,
        statistics,
        dataset.rate_hz,
        {key: names if key == "vision" else [key.partition("/")[2]] for key in cameras},
        columns={s.name: list(s.columns) for s in streams if s.role in ("observation", "action") and s.columns},
        ranges={key: {name: found[key][name] for name in RANGES} for key in statistics},
        samples=_samples(dataset, names),
        action_offset=dataset.window.action_offset if dataset.window else None,
        spec=export.spec if export else {},
    )


def _samples(dataset: TimelineDataset, images: list[str]) -> dict[str, dict[str, Any]]:
    """Return what some samples, evenly spaced, show of each stream that is observed."""
    chosen = [dataset[index] for index in np.unique(np.linspace(0, len(dataset) - 1, SAMPLES).astype(int)).tolist()]
    valid, age_ms = (np.concatenate([sample[key].numpy() for sample in chosen]) for key in ("valid", "age_ms"))
    found: dict[str, dict[str, Any]] = {}
    for index, stream in enumerate(dataset.streams_of(dataset.place(0)[0]).streams.values()):
        if stream.role == "observation":
            there = valid[:, index] > 0
            age = float(np.median(age_ms[there, index])) if there.any() else 0.0
            name = stream.name.partition("/")[2] if _is_vision(stream.name) else stream.name
            found[name] = {"valid": float(there.mean()), "age_ms": age}
    for index, name in enumerate(images):
        one = f"vision/{name}"
        shown = [sample[one][-1] if one in sample else sample["vision"][-1, index] for sample in chosen]
        mean, std = torch.stack([torch.stack([p.mean((0, 1)), p.std((0, 1))]) for p in (s / 255 for s in shown)]).mean(
            0
        )
        found[name] |= {"size": list(shown[0].shape[:2]), "mean": mean.tolist(), "std": std.tolist()}
    return found


MAX_WORKERS = 16
MIN_RUN, MAX_RUN = 8, 32  # samples: shorter runs are sought too often, longer ones are too alike in a batch
BUFFER_SAMPLES, BUFFER_BYTES = 8192, 4 << 30  # at most


def default_workers() -> int:
    """Return the processes that read for one training process: one per core, but for one core."""
    cores = len(os.sched_getaffinity(0)) // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return min(max(1, cores - 1), MAX_WORKERS)


def shuffled_order(dataset: TimelineDataset) -> bool | ShuffledRuns:
    """Return the order in which a training reads a dataset: runs of videos, which decode each frame once.

    A run has half of the samples between two key frames, 8 to 32, and the buffer 8,192 samples, or 4 GiB. The order
    follows from the dataset alone: memory, workers and caches change nothing.
    """
    videos = [video for stream in dataset.streams_of(0).streams.values() if (video := _video_of(stream)) is not None]
    if not videos or dataset.window is None:
        return True
    ticks = max(round(video.key_frame_interval() / video.fps * dataset.rate_hz) for video in videos)
    length = min(max(ticks // 2, MIN_RUN), MAX_RUN)
    sample_bytes = sum(value.nbytes for value in dataset[0].values() if isinstance(value, torch.Tensor))
    return ShuffledRuns(length, max(length, min(BUFFER_BYTES // sample_bytes, BUFFER_SAMPLES)))


def _video_of(stream: Stream) -> VideoFrames | None:
    """The video that the images of a stream are in, if they are in one."""
    values = stream.values.stream.values if isinstance(stream.values, ResizedFrames) else stream.values
    return values if isinstance(values, VideoFrames) else None


def training_loader(
    dataset: TimelineDataset,
    info: DataInfo,
    batch_size: int,
    *,
    options: LoaderOptions = NORMALIZED_IMAGES,
    **arguments: Any,
) -> TimelineLoader:
    """Return the shuffled, normalised batches of a dataset, from memory as far as it fits.

    `options` and `arguments` are those of `TimelineLoader`; the defaults are `shuffled_order` and `cache="auto"`.
    """
    given = {"drop_last": True, "statistics": info.statistics, "cache": "auto", **arguments}
    if "shuffle" not in given:
        given["shuffle"] = shuffled_order(dataset)
    return TimelineLoader(dataset, batch_size, options=options, **given)


def _is_vision(key: str) -> bool:
    return key.partition("/")[0] == "vision"


def _only_file(path: Path) -> Path:
    """The file of a robomimic dataset: the path itself, or the only one in the folder."""
    if path.suffix == ".hdf5":
        return path
    files = sorted(path.glob("*.hdf5"))
    if len(files) != 1:
        raise RoboCacheError(f"{printable(path)}: {len(files)} hdf5 files, not 1; give the file itself")
    return files[0]
