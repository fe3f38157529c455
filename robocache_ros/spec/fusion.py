"""The fusion spec: streams on one timeline. All defaults of the project are here, in `stream.py` and in `media.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec import keys, strict_yaml
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.keys import (
    Problem,
    SpecError,
    by_name,
    choice,
    integer,
    key,
    nested,
    number,
    pattern,
    refusal,
    show_value,
)
from robocache_ros.spec.run import RunOptions
from robocache_ros.spec.stream import OUTCOMES, TF, TF_TYPE, SpecQuality, StreamSpec
from robocache_ros.storage.paths import AnyPath, any_path
from robocache_ros.units import NS_PER_MS

_NAME = r"^[a-z][a-z0-9_]*$"
_stream_name = pattern("a stream name of lower-case letters, digits and _", _NAME)


_streams_by_name = by_name(
    "streams by name",
    "name: {topic: ..., type: ...}",
    lambda name, given: keys.read(StreamSpec, given, name=_stream_name.read(name)),
    keys.object_schema(StreamSpec),
    names={"pattern": _NAME},
)


@dataclass(frozen=True)
class FusionSpec:
    """The streams of a robot and the timeline they are fused on."""

    robocache: int = key(integer(1, 1), "version of this format")
    streams: tuple[StreamSpec, ...] = key(_streams_by_name, "the streams to fuse, by name; columns follow this order")
    rate_hz: int = key(integer(1, 1000), "ticks per second, on a grid anchored to the epoch", default=50, unit="Hz")
    horizon: int = key(integer(1, 10_000), "ticks in a published window", default=1)
    delay_ms: float = key(number(0, 60_000), "time from a tick to its publication", default=60.0, unit="ms")
    lead_ms: float = key(
        number(0, 60_000),
        "a tick is computed this long before tick + delay_ms; later arrivals are not in it. An eager tick is published "
        "once it is computed",
        default=0.0,
        unit="ms",
    )
    emit: str = key(
        choice("fixed", "eager"),
        "fixed: at tick + delay_ms; eager: once every stream has passed it, at tick + delay_ms - lead_ms at the latest",
        default="fixed",
    )
    actions: str = key(
        choice("required", "none"), "whether an export without an action stream is refused", default="required"
    )
    quality: SpecQuality | None = key(
        nested(SpecQuality), "limits that a recording must keep to be exported", default=None
    )
    dataset: DatasetOptions | None = key(
        nested(DatasetOptions), "what an export makes of recordings; its options come first", default=None
    )
    run: RunOptions | None = key(
        nested(RunOptions), "what `robocache run` does with a policy; its options come first", default=None
    )

    def __post_init__(self) -> None:
        if self.lead_ms > self.delay_ms:
            raise refusal("lead_ms", f"{self.lead_ms:g} is above delay_ms, {self.delay_ms:g}; use at most delay_ms")
        twice = [name for name, times in Counter(s.name for s in self.streams).items() if times > 1]
        if twice:
            raise refusal("streams", f"{show_value(twice[0])} is the name of two streams; rename one")
        if not any(self.inputs):
            raise refusal("streams", "none is an observation or an action; give one of them")
        for role in OUTCOMES:
            named = [stream.name for stream in self.streams if stream.role == role]
            if len(named) > 1:
                raise refusal(f"streams.{named[1]}.role", f"{role}, as that of {named[0]}; give one stream this role")
        for stream in self.streams:
            if stream.delta_from:
                self._check_delta(stream)
        for output in self.run.outputs if self.run else ():
            if not any(s.name == output.name and s.role == "action" for s in self.vectors):
                raise refusal(
                    f"run.outputs.{printable(output.name, 40)}", "is not a stream with role: action; name one"
                )

        for name, streams in self.run.observation if self.run else ():
            for given in streams:
                if not any(s.name == given and s.role == "observation" for s in self.streams):
                    text = f"{show_value(given)} is not a stream with role: observation; name one"
                    raise SpecError([Problem(("run", "observation", name), text)])

    def _check_delta(self, stream: StreamSpec) -> None:
        at = f"streams.{stream.name}.delta_from"
        found = next((s for s in self.vectors if s.name == stream.delta_from and s.role == "observation"), None)
        if found is None or found.rows:
            raise refusal(at, f"{stream.delta_from} is not an observation vector; name a stream of one value per tick")

    @property
    def delay_ns(self) -> int:
        """`delay_ms` in nanoseconds: a tick is published this long after its time."""
        return round(self.delay_ms * NS_PER_MS)

    @property
    def cut_ns(self) -> int:
        """`delay_ms` - `lead_ms` in nanoseconds: a tick is computed this long after its time."""
        return self.delay_ns - round(self.lead_ms * NS_PER_MS)

    def stream(self, name: str) -> StreamSpec:
        """Return the stream with this name."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        names = ", ".join(s.name for s in self.streams)
        raise RoboCacheError(f"streams.{printable(name, 40)}: no such stream; there are {printable(names, 120)}")

    @property
    def feeds(self) -> tuple[StreamSpec, ...]:
        """All topics to subscribe to or read: each stream, followed by its companions, then the feed for `framed`."""
        frames = tuple((s.voxels.frame, f"{s.name}/sensor") for s in self.framed if s.voxels)
        tf = (StreamSpec(TF, TF, TF_TYPE, frames=frames[0]),) if frames else ()
        return (*(feed for s in self.streams for feed in (s, *s.companions)), *tf)

    @property
    def framed(self) -> tuple[StreamSpec, ...]:
        """The streams whose sensor pose comes from /tf_static or /tf. The feed for /tf has the name of the topic."""
        return tuple(s for s in self.streams if s.voxels and s.voxels.frame)

    @property
    def transforms(self) -> tuple[StreamSpec, ...]:
        """The streams of poses from the transform tree."""
        return tuple(s for s in self.streams if s.is_transform)

    @property
    def vectors(self) -> tuple[StreamSpec, ...]:
        """The streams with columns in the fused tensor."""
        return tuple(s for s in self.streams if s.kind == "vector")

    @property
    def inputs(self) -> tuple[bool, ...]:
        """Of each stream, whether a row needs a value of it: true for observations and actions."""
        return tuple(not s.is_outcome for s in self.streams)

    @property
    def media(self) -> tuple[StreamSpec, ...]:
        """The streams of images and clouds."""
        return tuple(s for s in self.streams if s.kind != "vector")

    def without_cameras(self) -> FusionSpec:
        """Return the spec without its image streams.

        Raises:
            RoboCacheError: there are no other streams.
        """
        kept = tuple(stream for stream in self.streams if stream.kind != "image")
        if not kept:
            raise RoboCacheError("streams: all of them are images, and no media are stored; use media image or video")
        return replace(self, streams=kept)

    def in_namespace(self, namespace: str) -> FusionSpec:
        """Return the spec with absolute topics: a relative one is below `namespace`, such as `/robot1`."""
        above = "/" + namespace.strip("/") + "/" if namespace.strip("/") else "/"
        streams = []
        for stream in self.streams:
            given = {name: getattr(stream, name) for name in ("topic", "camera_info", "color")}
            absolute = {name: above + topic for name, topic in given.items() if topic and not topic.startswith("/")}
            streams.append(replace(stream, **absolute) if absolute else stream)
        outputs = []
        for output in self.run.outputs if self.run else ():
            named = {name: getattr(output, name) for name in ("topic", "takeover")}
            absolute = {name: above + topic for name, topic in named.items() if topic and not topic.startswith("/")}
            outputs.append(replace(output, **absolute))
        run = replace(self.run, outputs=tuple(outputs)) if self.run else None
        return replace(self, streams=tuple(streams), run=run)

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved spec as plain values with all defaults. `load_spec` restores an equal spec from them."""
        streams = {stream.name: keys.write(stream) for stream in self.streams}
        run = {"run": self.run.to_dict()} if self.run else {}
        return {**keys.write(self), "streams": streams, **run}


def load_spec(source: str | AnyPath | Mapping[str, Any], namespace: str = "/") -> FusionSpec:
    """Read a fusion spec from a YAML file or a mapping.

    Args:
        source: the path or URL of a YAML file, or its contents.
        namespace: the namespace of relative topics, such as `/robot1`.

    Raises:
        RoboCacheError: the spec is not valid. The message has one line per error, with its position in the file.
    """
    if isinstance(source, Mapping):
        return keys.read(FusionSpec, source).in_namespace(namespace)
    given, place = strict_yaml.read_file(any_path(source, "specs"), "give the path of a fusion spec")
    try:
        return keys.read(FusionSpec, given).in_namespace(namespace)
    except SpecError as error:
        raise SpecError(error.problems, place) from None


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a fusion spec, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "RoboCache fusion spec",
        **keys.object_schema(FusionSpec),
    }
