"""meta/info.json of a LeRobot dataset."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.validate.findings import Findings, read_json
from robocache_ros.untrusted_files import filled

INFO = "meta/info.json"
OWN = "meta/robocache.json"  # provenance of datasets that this package wrote
MAX_FEATURES = 500
MAX_VALUES = 1 << 24  # of one feature
# Columns that LeRobot adds to every dataset.
STANDARD = {
    "timestamp": "float32",
    **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64"),
}


@dataclass(frozen=True)
class Feature:
    """A feature of info.json."""

    dtype: str
    shape: tuple[int, ...]
    names: Any
    video: Mapping[str, Any] = field(default_factory=dict)  # video.height, video.codec, …

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of images, in either order of the axes."""
        if self.dtype not in ("image", "video") or len(self.shape) != 3:
            return None
        first = isinstance(self.names, list) and self.names[:1] in (["channel"], ["channels"])
        return (self.shape[1], self.shape[2]) if first else (self.shape[0], self.shape[1])


@dataclass(frozen=True)
class Info:
    """The contents of info.json that the checks use."""

    raw: dict[str, Any]
    fps: float
    features: dict[str, Feature]
    own: bool  # written by this package

    @property
    def videos(self) -> dict[str, Feature]:
        """Features that are videos."""
        return {key: feature for key, feature in self.features.items() if feature.dtype == "video"}

    def path(self, template: str, **values: int | str) -> str:
        """Return the path of a file from one of the templates of info.json.

        Errors:
            RoboCacheError: the template is missing or names something else.
        """
        pattern = self.raw.get(template)
        if not isinstance(pattern, str):
            raise RoboCacheError(f"{INFO}: has no {template}")
        try:
            return filled(pattern, **values)
        except (KeyError, ValueError) as error:
            raise RoboCacheError(
                f"{INFO}: {template} {printable(pattern, 60)!r} has an unknown field ({error})"
            ) from None

    def check_total(self, findings: Findings, key: str, found: int) -> None:
        """Report a total of info.json that differs from the data."""
        told = self.raw.get(key)
        findings.check(told == found, INFO, f"{key} is {printable(told, 20)}; the dataset has {found}")

    def check_splits(self, findings: Findings, episodes: int) -> None:
        """Report splits that are not ranges of episodes, or that have an episode in common."""
        splits = self.raw.get("splits")
        used: dict[int, str] = {}
        for name, span in (splits if isinstance(splits, dict) else {}).items():
            ends = str(span).split(":")
            where = f"{INFO}, splits.{printable(name, 30)}"
            if len(ends) != 2 or not all(end.strip().isdigit() and len(end) < 12 for end in ends):
                findings.add(where, f"{printable(span, 40)} is not a range of episodes as 0:{episodes}")
                continue
            first, stop = map(int, ends)
            if findings.check(first < stop <= episodes, where, f"{span} is not in 0:{episodes}, the episodes"):
                both = [used[episode] for episode in range(first, stop) if episode in used]
                findings.check(not both, where, f"{span} has {len(both)} episodes of {', '.join(both[:1])}")
                used.update((episode, str(name)) for episode in range(first, stop))
        if self.own:
            text = f"{episodes - len(used)} of {episodes} episodes are in no split"
            findings.check(len(used) == episodes, f"{INFO}, splits", text)


def codebase_version(dataset: Path) -> str | None:
    """Return the version of LeRobot's format, e.g. v3.0; None if this is no LeRobot dataset."""
    try:
        raw = read_json(dataset, INFO)
    except (RoboCacheError, OSError):
        return None
    version = raw.get("codebase_version") if isinstance(raw, dict) else None
    return version if isinstance(version, str) else None


def read_info(dataset: Path) -> Info:
    """Read info.json.

    Errors:
        RoboCacheError: it cannot be read, or fps or the features are not usable.
    """
    raw = read_json(dataset, INFO)
    fps = raw.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1e6:
        raise RoboCacheError(f"{INFO}: fps is {printable(fps, 40)}; it must be a positive number")
    features = raw.get("features")
    if not isinstance(features, dict) or not 0 < len(features) <= MAX_FEATURES:
        raise RoboCacheError(f"{INFO}: features is not an object of 1 to {MAX_FEATURES} features")
    known = {key: _feature(key, value) for key, value in features.items()}
    return Info(raw, float(fps), known, (dataset / OWN).is_file())


def _feature(key: str, value: Any) -> Feature:
    where = f"{INFO}: features.{printable(key, 60)}"
    if not isinstance(value, dict) or not isinstance(value.get("dtype"), str):
        raise RoboCacheError(f"{where}: has no dtype")
    shape = value.get("shape")
    if not isinstance(shape, list) or not all(isinstance(side, int) and side > 0 for side in shape):
        raise RoboCacheError(f"{where}: shape is not a list of positive integers")
    if math.prod(shape) > MAX_VALUES:
        raise RoboCacheError(f"{where}: has more than {MAX_VALUES:,} values")
    video = value.get("info") or value.get("video_info")
    return Feature(value["dtype"], tuple(shape), value.get("names"), video if isinstance(video, dict) else {})


def check_standard_features(findings: Findings, info: Info) -> None:
    """Report columns that every LeRobot dataset has and this one has not."""
    for key, dtype in STANDARD.items():
        feature = info.features.get(key)
        if feature is None:
            findings.add(INFO, f"features has no {key}")
        else:
            findings.check(
                feature.dtype == dtype, INFO, f"features.{key}: dtype is {feature.dtype}; LeRobot has {dtype}"
            )
    for key, feature in info.videos.items():
        wanted = {"video.fps": info.fps}
        wanted |= dict(zip(("video.height", "video.width"), feature.size or (), strict=False))
        for name, value in wanted.items():
            text = f"features.{key}: {name} is {printable(feature.video.get(name), 20)}; it must be {value:g}"
            findings.check(feature.video.get(name, value) == value, INFO, text)
    if "action" not in info.features:
        findings.skip("actions: the dataset has none, so no policy can be trained to act")
