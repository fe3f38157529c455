"""The fusion spec: streams on one timeline. Every default of the project is here and in `streams.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from robocache_ros import declare
from robocache_ros.declare import choice, integer, key, number
from robocache_ros.errors import RoboCacheError
from robocache_ros.media_spec import IMAGENET, Extrinsic, ImageSpec, Normalize, VoxelSpec
from robocache_ros.streams import (
    CAMERA_INFO_TYPE,
    CLOUD_TYPE,
    IMAGE_TYPES,
    JOINT_TYPE,
    NS_PER_MS,
    TF_STATIC,
    QosSpec,
    StreamSpec,
    pattern,
)

__all__ = [
    "CAMERA_INFO_TYPE",
    "CLOUD_TYPE",
    "IMAGENET",
    "IMAGE_TYPES",
    "JOINT_TYPE",
    "NS_PER_MS",
    "NS_PER_S",
    "TF_STATIC",
    "Extrinsic",
    "FusionSpec",
    "ImageSpec",
    "Normalize",
    "QosSpec",
    "StreamSpec",
    "VoxelSpec",
    "json_schema",
    "load_spec",
]

NS_PER_S = 1_000_000_000

_NAME = r"^[a-z][a-z0-9_]*$"
_stream_name = pattern("a stream name of lower-case letters, digits and _", _NAME)


def _streams(path: str, raw: Any) -> tuple[StreamSpec, ...]:
    if not isinstance(raw, Mapping) or not raw:
        raise RoboCacheError(f"{path}: expected at least one stream as `name: {{topic: …, type: …}}`, got {raw!r}")
    for name in raw:
        _stream_name.read(f"{path}: {name!r} as a name", name)
    return tuple(declare.read(StreamSpec, f"{path}.{name}", keys, name=name) for name, keys in raw.items())


_streams_kind = declare.Kind(
    "streams by name",
    _streams,
    {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": _NAME},
        "additionalProperties": declare.object_schema(StreamSpec),
    },
)


@dataclass(frozen=True)
class FusionSpec:
    """The streams of a robot and the timeline they are fused on."""

    robocache: int = key(integer(1, 1), "version of this format")
    streams: tuple[StreamSpec, ...] = key(_streams_kind, "what is fused, by name; columns follow this order")
    rate_hz: int = key(integer(1, 1000), "ticks a second, on a grid from the epoch", default=50, unit="Hz")
    horizon: int = key(integer(1, 10_000), "ticks in a published window", default=1)
    delay_ms: float = key(number(0, 60_000), "how long after its time a tick goes out", default=60.0, unit="ms")
    lead_ms: float = key(
        number(0, 60_000), "a tick is made this long before it goes out; what arrives later is not in it", default=0.0,
        unit="ms",
    )  # fmt: skip
    emit: str = key(
        choice("fixed", "eager"), "fixed: at tick + delay_ms; eager: once every stream has passed it", default="fixed"
    )

    def __post_init__(self) -> None:
        if self.lead_ms > self.delay_ms:
            raise RoboCacheError(
                f"lead_ms: {self.lead_ms:g} is above delay_ms, {self.delay_ms:g}; a tick is made after its time"
            )

    @property
    def delay_ns(self) -> int:
        """`delay_ms` in nanoseconds: a tick goes out this long after its time."""
        return round(self.delay_ms * NS_PER_MS)

    @property
    def cut_ns(self) -> int:
        """`delay_ms` less `lead_ms` in nanoseconds: a tick is made this long after its time, of what is there then."""
        return self.delay_ns - round(self.lead_ms * NS_PER_MS)

    def stream(self, name: str) -> StreamSpec:
        """The stream of that name."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise RoboCacheError(f"streams.{name}: no such stream; there are {', '.join(s.name for s in self.streams)}")

    @property
    def feeds(self) -> tuple[StreamSpec, ...]:
        """All that is subscribed to or read: the streams, and behind each the topics that complete it."""
        return tuple(feed for s in self.streams for feed in (s, *s.companions))

    @property
    def framed(self) -> tuple[StreamSpec, ...]:
        """The streams whose sensor's pose comes from /tf_static."""
        return tuple(s for s in self.streams if s.voxels and s.voxels.frame)

    @property
    def vectors(self) -> tuple[StreamSpec, ...]:
        """The streams that have columns in the fused tensor."""
        return tuple(s for s in self.streams if s.kind == "vector")

    @property
    def media(self) -> tuple[StreamSpec, ...]:
        """The streams of images and clouds."""
        return tuple(s for s in self.streams if s.kind != "vector")

    def to_dict(self) -> dict[str, Any]:
        """The resolved spec as plain values, every default written out; `load_spec` reads it back the same."""
        streams = {
            s.name: {k: v for k, v in asdict(s).items() if k != "name" and (v or k in ("latency_ms", "max_age_ms"))}
            for s in self.streams
        }
        return {k: _plain(streams if k == "streams" else getattr(self, k)) for k in declare.keys_of(FusionSpec)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items() if v is not None and v not in ((), "")}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def load_spec(source: str | Path | Mapping[str, Any]) -> FusionSpec:
    """Read a fusion spec from a YAML file or a mapping; `RoboCacheError` names what is wrong and what is allowed."""
    if isinstance(source, Mapping):
        return declare.read(FusionSpec, "", source)
    path = Path(source)
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RoboCacheError(f"{path}: cannot be read ({error.strerror}); give the path of a fusion spec") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RoboCacheError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    try:
        return declare.read(FusionSpec, "", raw)
    except RoboCacheError as error:
        raise RoboCacheError(f"{path}: {error}") from None


def json_schema() -> dict[str, Any]:
    """The JSON schema of a fusion spec, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "RoboCache fusion spec",
        **declare.object_schema(FusionSpec),
    }
