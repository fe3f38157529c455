"""Messages into the engine: one way in for live and recorded; bad input is counted and dropped, never raised."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from robocache_ros.decode import CloudPayload, DecodeError, Decoder, DepthPayload, Sample, make_decoder
from robocache_ros.decode.transforms import read_transforms
from robocache_ros.engine.engine import FusionEngine, Outcome
from robocache_ros.engine.pairs import Pairer
from robocache_ros.engine.transforms import StaticTransforms
from robocache_ros.spec import FusionSpec

log = logging.getLogger(__name__)


class Ingest:
    """Decodes messages by stream and pushes them into an engine.

    `counters[stream]` counts `received`, `decoded`, each `Outcome` by name, `dropped:<cause>` for each cause,
    `unmatched` messages (with joints that the spec does not name) and `joint_sets_changed` (messages whose joints are
    others than those before). A depth image and what completes it are received by the names of `FusionSpec.feeds`; the
    outcomes are counted with the stream, and so are `unpaired` depth images and, by `unpaired:<key>`, what they lacked.
    A cloud that comes before /tf_static has told of its sensor's place in `voxels.frame` is `dropped:no_transform`.

    Args:
        spec: the streams.
        engine: where the samples go.
        definitions: message definitions by type, for types that the project does not know (a bag carries them).
    """

    def __init__(self, spec: FusionSpec, engine: FusionEngine, definitions: Mapping[str, str] | None = None) -> None:
        self.engine = engine
        self.counters: dict[str, Counter[str]] = {feed.name: Counter() for feed in spec.feeds}
        self._decoders = {feed.name: make_decoder(feed, definitions) for feed in spec.feeds}
        self.transforms = StaticTransforms()
        self._frames = {stream.name: stream.voxels.frame for stream in spec.framed if stream.voxels}
        self._pairers: dict[str, Pairer] = {}  # by feed: depth images and what completes them
        for stream in spec.streams:
            if stream.companions:
                pairer = Pairer(stream)
                self._pairers |= {feed.name: pairer for feed in (stream, *stream.companions)}

    def serialized(self, stream: str, data: bytes | memoryview, arrival_ns: int) -> Outcome:
        """Take in the CDR bytes of a message; those of an image or a cloud are kept where they are."""
        decoder = self._decoders[stream]
        return self._take(stream, decoder, decoder.decode_cdr, data, arrival_ns)

    def message(self, stream: str, message: object, arrival_ns: int) -> Outcome:
        """Take in a message object."""
        decoder = self._decoders[stream]
        return self._take(stream, decoder, decoder.decode_message, message, arrival_ns)

    def static_transforms(self, data: bytes) -> None:
        """Take in the CDR bytes of a message of /tf_static."""
        try:
            for transform in read_transforms(data):
                self.transforms.add(transform)
        except DecodeError as error:
            log.warning("/tf_static: a message is dropped: %s", error)

    def _take(
        self, feed: str, decoder: Decoder, decode: Callable[[Any], Sample], source: Any, arrival_ns: int
    ) -> Outcome:
        counters = self.counters[feed]
        counters["received"] += 1
        try:
            sample = decode(source)
        except DecodeError as error:
            return self._dropped(feed, error)
        counters["decoded"] += 1
        if sample.unmatched:
            counters["unmatched"] += 1
        if decoder.changed_sets:
            counters["joint_sets_changed"] = decoder.changed_sets
        pairer = self._pairers.get(feed)
        if pairer is None:
            return self._push(feed, sample, arrival_ns)
        outcome = Outcome.WAITING
        try:
            for complete in pairer.take(feed, sample):
                outcome = self._push(pairer.name, complete, arrival_ns)
        except DecodeError as error:
            outcome = self._dropped(pairer.name, error)
        self.counters[pairer.name] |= pairer.counters  # the larger of each: what was counted so far
        return outcome

    def _push(self, stream: str, sample: Sample, arrival_ns: int) -> Outcome:
        value = sample.value
        frame = self._frames.get(stream)
        if frame and isinstance(value, (CloudPayload, DepthPayload)):
            matrix = self.transforms.lookup(frame, sample.frame_id)
            if matrix is None:
                text = f"/tf_static leads from {sample.frame_id or 'no frame_id'} not to {frame}, or not yet"
                return self._dropped(stream, DecodeError("no_transform", text))
            value = replace(value, transform=matrix)
        outcome = self.engine.push(stream, sample.stamp_ns, arrival_ns, value)
        self.counters[stream][outcome.value] += 1
        return outcome

    def _dropped(self, feed: str, error: DecodeError) -> Outcome:
        counters, cause = self.counters[feed], f"dropped:{error.cause}"
        if not counters[cause]:  # once per cause: at 500 Hz a log line a message helps nobody
            log.warning("%s: a message is dropped: %s", feed, error)
        counters[cause] += 1
        counters[Outcome.DROPPED.value] += 1
        return Outcome.DROPPED
