"""What an export finds out about a recording, for the report, the provenance and episode tables."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.clocks import Clock
from robocache_ros.bags.stats import Gap, TopicStats
from robocache_ros.engine.frames import Frames
from robocache_ros.errors import number_of
from robocache_ros.extras import need
from robocache_ros.formats.pieces import EpisodeInfo
from robocache_ros.formats.read import STATES
from robocache_ros.spec import FusionSpec
from robocache_ros.storage.paths import AnyPath
from robocache_ros.units import NS_PER_MS

VISIBILITIES = ("ideal", "deployed")
Totals = dict[str, Any]  # ticks, and by stream the ticks aligned and held, and the sum and the number of ages


def quality(valid: NDArray[np.uint8]) -> dict[str, float]:
    """Return shares of the (T, N) states of inputs, each the mean of those of its streams.

    complete, all_aligned: of the ticks at which every stream has a value, or is aligned.
    """
    if not len(valid):
        return dict.fromkeys((*STATES, "complete", "all_aligned"), 0.0)
    return {
        **{name: float((valid == state).mean(axis=0).mean()) for name, state in STATES.items()},
        "complete": float((valid > 0).all(axis=1).mean()),
        "all_aligned": float((valid == 1).all(axis=1).mean()),
    }


def grey_levels(image: NDArray[Any]) -> NDArray[np.uint8]:
    """Return an 8-bit image as it is, and other numbers, such as depth, scaled to 0 to 255."""
    if image.dtype == np.uint8:
        return image
    finite = np.nan_to_num(image.astype(np.float32), posinf=0, neginf=0)
    levels: NDArray[np.uint8] = (255 * finite / max(float(finite.max()), 1e-9)).clip(0, 255).astype(np.uint8)
    return levels


class ValueAges:
    """Adds up the ages of the values of N streams."""

    def __init__(self, streams: int) -> None:
        self._sum_ms = np.zeros(streams)
        self._count = np.zeros(streams, np.int64)

    def add(self, frames: Frames) -> None:
        """Add the values of frames."""
        present = frames.valid > 0
        self._sum_ms += np.where(present, frames.age_ns / NS_PER_MS, 0.0).sum(axis=0)
        self._count += present.sum(axis=0)

    def totals(self, valid: NDArray[np.uint8]) -> Totals:
        """Return sums that can be added up over recordings, given the (T, N) states of all ticks."""
        return {
            "ticks": len(valid),
            "aligned": (valid == 1).sum(axis=0).tolist(),
            "held": (valid == 2).sum(axis=0).tolist(),
            "age_ms": self._sum_ms.tolist(),
            "ages": self._count.tolist(),
        }


def coverage(totals: list[Totals], names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Return the shares of aligned, held and invalid ticks of each stream, and the mean age of its values in ms.

    The age of a stream without a value is NaN.
    """
    ticks = max(sum(one["ticks"] for one in totals), 1)
    aligned, held, age_ms, ages = (
        np.sum([one[key] for one in totals], axis=0) for key in ("aligned", "held", "age_ms", "ages")
    )
    return {
        name: {
            "aligned": float(aligned[row] / ticks),
            "held": float(held[row] / ticks),
            "invalid": float(1 - (aligned[row] + held[row]) / ticks),
            "mean_age_ms": float(age_ms[row] / ages[row]) if ages[row] else float("nan"),
        }
        for row, name in enumerate(names)
    }


def side_by_side(
    recordings: list[Mapping[str, Totals]], names: tuple[str, ...]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return by visibility the coverage over the recordings that were computed under both; empty if none was."""
    both = [one for one in recordings if all(visibility in one for visibility in VISIBILITIES)]
    if not both:
        return {}
    return {visibility: coverage([one[visibility] for one in both], names) for visibility in VISIBILITIES}


COUNT = 8  # per camera
HEIGHT = 112
MAX_WIDTH = 1120


class Thumbnails:
    """Keeps the first image of each camera at or after each of `COUNT` evenly spaced times."""

    def __init__(self, spec: FusionSpec, start_ns: int, stop_ns: int) -> None:
        edges = np.linspace(start_ns, stop_ns, COUNT + 1)[:-1]
        self._moments = (edges + (stop_ns - start_ns) / COUNT / 2).astype(np.int64)
        self._rows = {s.name: i for i, s in enumerate(spec.streams) if s.kind == "image"}
        self._next = dict.fromkeys(self._rows, 0)
        # Camera -> tick_ns and JPEG file, in order.
        self.images: dict[str, list[tuple[int, bytes]]] = {name: [] for name in self._rows}

    def watch(self, frames: Frames) -> None:
        """Keep the images at the next thumbnail times."""
        for name, row in self._rows.items():
            usable = np.flatnonzero(frames.valid[:, row] > 0)
            while self._next[name] < COUNT:
                after = usable[frames.ticks_ns[usable] >= self._moments[self._next[name]]]
                if not len(after):
                    break
                tick = int(after[0])
                self.images[name].append((int(frames.ticks_ns[tick]), _jpeg(frames.media[name][tick].numpy())))
                self._next[name] += 1


def _jpeg(image: NDArray[np.generic]) -> bytes:
    """Encode a (C, H, W) image of any type as a small JPEG file; depth is scaled to the range of gray levels."""
    image = grey_levels(image)
    rgb = np.ascontiguousarray(np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0)).astype(np.uint8)
    picture = need("PIL.Image", "export").fromarray(rgb)
    scale = min(1.0, HEIGHT / picture.height, MAX_WIDTH / picture.width)
    if scale < 1:
        picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82)
    return file.getvalue()


@dataclass(frozen=True)
class FailedRecording:
    """A recording that is not in the dataset, and the reason."""

    bag: AnyPath
    reason: str
    dropped: bool = False  # because of `on_invalid: drop`


@dataclass(frozen=True)
class ExportedRecording:
    """The result of the export of one recording."""

    bag: AnyPath
    spec: FusionSpec
    visibility: str
    start_ns: int
    stop_ns: int
    ticks_ns: NDArray[np.int64] = field(repr=False)  # (T,) every tick of the recording
    valid: NDArray[np.uint8] = field(repr=False)  # (T, N)
    episodes: tuple[EpisodeInfo, ...]  # their start and stop are rows of `ticks_ns`
    counters: dict[str, Counter[str]]
    topics: dict[str, TopicStats]
    notes: tuple[str, ...]
    integrity: str  # whether checksums of the messages were verified
    thumbnails: Thumbnails = field(repr=False)
    task: str = ""
    success: bool | None = None  # None: unknown
    clocks: dict[str, Any] = field(default_factory=dict)  # `timeline`, and the `device_clocks` of streams
    reasons: dict[str, int] = field(default_factory=dict)  # why ticks are in no episode -> number of ticks
    visibilities: dict[str, Totals] = field(default_factory=dict)  # with `compare_visibility`: ideal and deployed

    @property
    def kept(self) -> NDArray[np.bool_]:
        """(T,) bool, true for ticks in an episode."""
        kept = np.zeros(len(self.ticks_ns), bool)
        for episode in self.episodes:
            kept[episode.start : episode.stop] = True
        return kept

    @property
    def stated_episodes(self) -> list[dict[str, Any]]:
        """What the provenance and the report state of each episode."""
        return [
            {
                "first_tick_ns": int(self.ticks_ns[episode.start]),
                "last_tick_ns": int(self.ticks_ns[episode.stop - 1]),
                "frames": episode.stop - episode.start,
                "task": episode.task,
                "success": episode.success,
            }
            for episode in self.episodes
        ]

    @property
    def frames(self) -> int:
        """Number of ticks in episodes."""
        return sum(episode.stop - episode.start for episode in self.episodes)

    @property
    def leading(self) -> int:
        """Number of ticks before the first episode."""
        return self.episodes[0].start if self.episodes else len(self.ticks_ns)

    @property
    def trailing(self) -> int:
        """Number of ticks after the last episode."""
        return len(self.ticks_ns) - self.episodes[-1].stop if self.episodes else 0

    @property
    def duration_s(self) -> float:
        """Duration of the recording in seconds."""
        return (self.stop_ns - self.start_ns) / 1e9

    def elapsed_s(self, time_ns: int) -> float:
        """Return the seconds from the start of the recording to a time; where its clock jumps back, by its ticks."""
        if not len(self.ticks_ns) or (np.diff(self.ticks_ns) >= 0).all():
            return (time_ns - self.start_ns) / 1e9
        row = int(np.abs(self.ticks_ns - time_ns).argmin())
        return (int(self.ticks_ns[0]) - self.start_ns) / 1e9 + row / self.spec.rate_hz

    def left_out(self) -> str:
        """Describe the ticks that are not in an episode; empty if there are none."""
        total = len(self.ticks_ns)
        if self.frames == total:
            return ""
        between = total - self.leading - self.trailing - self.frames
        parts = [
            f"{count:,} {where}"
            for count, where in ((self.leading, "at the start"), (between, "in between"), (self.trailing, "at the end"))
            if count
        ]
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.reasons.items())
        if tuple(self.reasons) == ("without a value",):  # else the streams of other ticks would be named too
            reasons += f" of {self._missing()}"
        split = f"; {len(self.episodes)} episodes" if len(self.episodes) > 1 else ""
        return f"{total - self.frames:,} of {number_of(total, 'tick')} left out: {reasons} ({', '.join(parts)}){split}"

    def _missing(self) -> str:
        """Name the streams whose missing values leave ticks out, the most frequent first."""
        absent = np.sum(self.valid[~self.kept] == 0, axis=0)
        needed = [has and s.on_invalid != "mask" for s, has in zip(self.spec.streams, self.spec.inputs, strict=True)]
        names = [self.spec.streams[i].name for i in np.argsort(-absent, kind="stable") if needed[i] and absent[i]]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def drop_causes(counts: Mapping[str, int]) -> str:
    """List why messages of a stream were dropped, with numbers, from its counters; empty if none were."""
    causes = {key.removeprefix("dropped:"): count for key, count in counts.items() if key.startswith("dropped:")}
    return ", ".join(f"{count:,} {cause}" for cause, count in sorted(causes.items()))


RECORDING_JSON, RECORDING_ARRAYS = "recording.json", "recording.npz"
_OF_TOPICS = ("intervals_ms", "delays_ms")  # arrays of the topic statistics
StorageFiles = list[dict[str, Any]]  # name, size and SHA-256 of the storage files


def save_recording(folder: Path, recording: ExportedRecording, files: StorageFiles) -> None:
    """Write the result of a recording into the folder of its piece."""
    arrays = {"ticks_ns": recording.ticks_ns, "valid": recording.valid}
    topics = []
    for number, stats in enumerate(recording.topics.values()):
        arrays.update({f"{name}_{number}": getattr(stats, name) for name in _OF_TOPICS})
        topics.append({f.name: getattr(stats, f.name) for f in fields(stats) if f.name not in _OF_TOPICS})
    stated = {
        "files": files,
        "start_ns": recording.start_ns,
        "stop_ns": recording.stop_ns,
        "episodes": [asdict(episode) for episode in recording.episodes],
        "reasons": recording.reasons,
        "counters": recording.counters,
        "topics": [{**topic, "gaps": [(gap.start_ns, gap.length_ns) for gap in topic["gaps"]]} for topic in topics],
        "notes": recording.notes,
        "clocks": recording.clocks,
        "integrity": recording.integrity,
        "visibilities": recording.visibilities,
        "thumbnails": {
            name: [(tick, base64.b64encode(file).decode()) for tick, file in images]
            for name, images in recording.thumbnails.images.items()
        },
    }
    (folder / RECORDING_JSON).write_text(json.dumps(stated), encoding="utf-8")
    np.savez(folder / RECORDING_ARRAYS, **arrays)  # type: ignore[arg-type]  # no array has the name of an option of savez


def load_recording(
    folder: AnyPath, bag: AnyPath, spec: FusionSpec, visibility: str
) -> tuple[ExportedRecording, StorageFiles]:
    """Load the result that `save` stored, given the inputs from the plan of the export."""
    stated = json.loads((folder / RECORDING_JSON).read_text(encoding="utf-8"))
    with np.load(folder / RECORDING_ARRAYS, allow_pickle=False) as file:
        arrays = dict(file)
    topics = {}
    for number, raw in enumerate(stated["topics"]):
        gaps = tuple(Gap(*gap) for gap in raw["gaps"])
        of_topic = {name: arrays[f"{name}_{number}"] for name in _OF_TOPICS}
        topics[raw["topic"]] = TopicStats(
            **{**raw, "clock": Clock(*raw["clock"]), "gaps": gaps, "apart": tuple(raw["apart"]), **of_topic}
        )
    thumbnails = Thumbnails(spec, stated["start_ns"], stated["stop_ns"])
    for name, images in stated["thumbnails"].items():
        thumbnails.images[name] = [(tick, base64.b64decode(text)) for tick, text in images]
    recording = ExportedRecording(
        bag=bag,
        spec=spec,
        visibility=visibility,
        start_ns=stated["start_ns"],
        stop_ns=stated["stop_ns"],
        ticks_ns=arrays["ticks_ns"],
        valid=arrays["valid"],
        episodes=tuple(EpisodeInfo(**episode) for episode in stated["episodes"]),
        reasons=stated["reasons"],
        counters={name: Counter(counts) for name, counts in stated["counters"].items()},
        topics=topics,
        notes=tuple(stated["notes"]),
        clocks=stated["clocks"],
        integrity=stated["integrity"],
        visibilities=stated["visibilities"],
        thumbnails=thumbnails,
    )
    return recording, stated["files"]
