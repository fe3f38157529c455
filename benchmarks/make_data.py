"""Writes one synthetic dataset of streams from 30 to 333 Hz and of variable length, in several formats.

hdf5        the streams as they are, with their stamps, as Hdf5Trajectories reads them
robomimic, rlds, lerobot and the other formats of `robocache export`: the same at 50 Hz, exported from recordings
calvin      the same at 30 Hz, the rate of CALVIN, without the features, which it has no place for, annotated in pieces
            of at most 64 steps, as CALVIN is
bridge      a TFDS dataset that you have, such as Bridge, in the form of hdf5
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.episodes import STREAMS, write_episodes
from robocache_ros.bags.write import write_bag
from robocache_ros.datasets import EpisodeSource, Hdf5Trajectories, TimelineDataset, open_dataset
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.formats.registry import WRITERS
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export

# The synthetic episodes as recordings, from which exports make datasets of every format.


ARRAY = "std_msgs/msg/Float32MultiArray"
START_NS = 1_760_000_000_000_000_000
RATE_HZ = 50
TASK = "follow the wave"


def spec() -> dict[str, Any]:
    """A spec with the streams of the episodes. The messages have no header: their log times are their stamps."""
    streams = {
        stream.name: {
            "topic": f"/{stream.name}",
            "type": ARRAY,
            "dim": stream.width,
            "stamp": "receive",
            "align": "hold" if stream.role == "action" else "linear",
            "role": stream.role,
        }
        for stream in STREAMS
    }
    return {"robocache": 1, "rate_hz": RATE_HZ, "streams": streams}


def export_episodes(source: EpisodeSource, work: Path, out: Path, formats: tuple[str, ...]) -> None:
    """Export episodes to a folder, each format in a folder of its name.

    Args:
        source: of the streams of `mixed_rate_episodes.STREAMS`.
        work: empty folder for the recordings.
        out: new folder for the datasets.
        formats: at least one.
    """
    types = {f"/{stream.name}": ARRAY for stream in STREAMS}
    bags = [write_bag(work / f"episode_{k:05d}", types, _messages(source, k)) for k in range(len(source))]
    target = out / formats[0] if len(formats) == 1 else out
    export(bags, load_spec(spec()), target, DatasetOptions(formats=formats, task=TASK, media="none"), report=False)


def _messages(source: EpisodeSource, index: int) -> Iterator[tuple[str, int, bytes]]:
    """Yield (topic, log time in ns, CDR bytes) in the order of their times."""
    found = []
    for name, stream in source.read(index).streams.items():
        values = np.asarray(stream.values, np.float32)
        head = b"\0\1\0\0" + struct.pack("<3I", 0, 0, values.shape[1])
        found += [
            (START_NS + t, f"/{name}", head + row.tobytes()) for t, row in zip(stream.stamps_ns, values, strict=True)
        ]
    for stamp_ns, topic, data in sorted(found, key=lambda each: each[0]):
        yield topic, int(stamp_ns), data


EXPORTED = tuple(name for name in WRITERS if name not in ("mcap", "delta"))
SETS = ("hdf5", "calvin", *EXPORTED)
DEFAULT = ("hdf5", "rlds", "calvin", "robomimic", "lerobot")
CALVIN_HZ, CALVIN_COLUMNS, CALVIN_STEPS = 30, 15, 64
MAX_EPISODES, MAX_SEED = 100_000, 2**32 - 1


def make_sets(
    out: Path,
    formats: Sequence[str] = DEFAULT,
    episodes: int = 20,
    seed: int = 0,
    bridge: Path | None = None,
    bridge_split: str = "train",
) -> dict[str, Path]:
    """Write the datasets, and return the path of each.

    Args:
        out: new folder.
        formats: some of `SETS`.
        episodes: their number.
        seed: of the lengths and the values.
        bridge: folder of a TFDS dataset, of which so many episodes are converted.
        bridge_split: the split of it.

    Errors:
        RoboCacheError: the folder exists or cannot be created, a format is not known, or the TFDS dataset cannot be
            read: no folder is left then.
    """
    _check(out, formats, episodes, seed)
    converted = None  # opened first: what cannot be read leaves no folder
    if bridge is not None:
        converted = open_dataset("rlds", bridge, target_hz=5, rate_hz=5, split=bridge_split).source
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise RoboCacheError(f"{printable(out, 80)}: {error.strerror}; give another folder") from None
    paths = {}
    with tempfile.TemporaryDirectory(prefix="robocache-bench-") as folder:
        raw = (out if "hdf5" in formats else Path(folder)) / "trajectories.hdf5"
        write_episodes(raw, episodes, seed=seed)
        source = Hdf5Trajectories(raw, roles={stream.name: stream.role for stream in STREAMS})
        if "hdf5" in formats:
            paths["hdf5"] = raw
        exported = tuple(name for name in formats if name in EXPORTED)
        if exported:
            export_episodes(source, Path(folder), out / "exports", exported)
            paths.update({name: out / "exports" / name for name in exported})
        if "calvin" in formats:
            paths["calvin"] = write_calvin(source, out / "calvin")
        if converted is not None:
            paths["bridge"] = write_trajectories(converted, out / "bridge.hdf5", episodes)
    return paths


def _check(out: Path, formats: Sequence[str], episodes: int, seed: int) -> None:
    unknown = [name for name in formats if name not in SETS]
    if unknown:
        raise RoboCacheError(f"format: {printable(unknown[0], 40)!r} is not one of {', '.join(SETS)}; choose one")
    if not 1 <= episodes <= MAX_EPISODES:
        raise RoboCacheError(f"episodes: {episodes} is not in 1..{MAX_EPISODES:,}; give their number")
    if out.exists():
        raise RoboCacheError(f"{printable(out, 80)}: exists; give a new folder")
    if not 0 <= seed <= MAX_SEED:
        raise RoboCacheError(f"seed: {seed} is not in 0..{MAX_SEED}; give another")


def write_calvin(source: EpisodeSource, folder: Path) -> Path:
    """Write a split of CALVIN: a file per step, and each piece of an episode annotated with one task."""
    split = folder / "training"
    (split / "lang_annotations").mkdir(parents=True)
    dataset = TimelineDataset(source, target_hz=CALVIN_HZ, modalities=("proprio",))
    observed = [stream for stream in STREAMS if stream.role == "observation"]
    widest = max(observed, key=lambda stream: stream.width)  # the features
    begin = sum(stream.width for stream in observed[: observed.index(widest)])
    ranges: list[tuple[int, int]] = []
    pieces: list[tuple[int, int]] = []
    step = 0
    for episode in range(len(dataset)):
        sample = dataset[episode]
        kept = np.delete(sample["proprio"].numpy(), slice(begin, begin + widest.width), axis=1)
        places = np.zeros((len(kept), CALVIN_COLUMNS), np.float32)
        places[:, : kept.shape[1]] = kept[:, :CALVIN_COLUMNS]
        ranges.append((step, step + len(kept) - 1))
        edges = np.linspace(step, step + len(kept), -(-len(kept) // CALVIN_STEPS) + 1).astype(int).tolist()
        pieces += [(first, end - 1) for first, end in pairwise(edges)]
        for place, action in zip(places, sample["actions"].numpy(), strict=True):
            np.savez(split / f"episode_{step:07d}.npz", robot_obs=place, actions=action, rel_actions=action)
            step += 1
    count = len(pieces)
    np.save(split / "ep_start_end_ids.npy", np.array(ranges))
    annotations: Any = {"language": {"ann": [TASK] * count, "task": ["wave"] * count}, "info": {"indx": pieces}}
    np.save(split / "lang_annotations" / "auto_lang_ann.npy", annotations)
    return folder


def write_trajectories(source: EpisodeSource, path: Path, episodes: int) -> Path:
    """Write the first episodes of a source with their images, as `Hdf5Trajectories` reads them."""
    with need("h5py", "hdf5").File(path, "w") as file:
        for index in range(min(episodes, len(source))):
            episode = source.read(index)
            group = file.create_group(f"{index:06d}")
            group.attrs["task"] = episode.task
            for full_name, stream in episode.streams.items():
                name = full_name.removeprefix("vision/").replace("/", "_")  # a group of the file
                values = stream.values[:] if isinstance(stream.values, np.ndarray) else _pixels(stream)
                group.create_dataset(f"{name}/stamps_ns", data=stream.stamps_ns)
                group.create_dataset(f"{name}/values", data=values)
    return path


def _pixels(stream: Any) -> Any:
    from robocache_ros.formats.images import images_at

    return images_at(stream, np.arange(len(stream.stamps_ns)), stream.name)
