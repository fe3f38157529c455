"""Messages into the engine: one way in for live and recorded; bad input is counted and dropped, never raised."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from robocache_ros.decode import DecodeError, Decoder, Sample, make_decoder
from robocache_ros.engine.engine import FusionEngine, Outcome
from robocache_ros.engine.pairs import Pairer
from robocache_ros.spec import FusionSpec

log = logging.getLogger(__name__)


class Ingest:
    """Decodes messages by stream and pushes them into an engine.

    `counters[stream]` counts `received`, `decoded`, each `Outcome` by name, `dropped:<cause>` for each cause,
    `unmatched` messages (with joints that the spec does not name) and `joint_sets_changed` (messages whose joints are
    others than those before). A depth image and what completes it are received by the names of `FusionSpec.feeds`; the
    outcomes are counted with the stream, and so are `unpaired` images, whose other half has not come.

    Args:
        spec: the streams.
        engine: where the samples go.
        definitions: message definitions by type, for types that the project does not know (a bag carries them).
    """

    def __init__(self, spec: FusionSpec, engine: FusionEngine, definitions: Mapping[str, str] | None = None) -> None:
        self.engine = engine
        self.counters: dict[str, Counter[str]] = {feed.name: Counter() for feed in spec.feeds}
        self._decoders = {feed.name: make_decoder(feed, definitions) for feed in spec.feeds}
        self._pairers: dict[str, Pairer] = {}  # by feed: depth images and what completes them
        for stream in spec.streams:
            if stream.companions:
                pairer = Pairer(stream)
                self._pairers |= {feed.name: pairer for feed in (stream, *stream.companions)}

    def serialized(self, stream: str, data: bytes, arrival_ns: int) -> Outcome:
        """Take in the CDR bytes of a message."""
        decoder = self._decoders[stream]
        return self._take(stream, decoder, decoder.decode_cdr, data, arrival_ns)

    def message(self, stream: str, message: object, arrival_ns: int) -> Outcome:
        """Take in a message object."""
        decoder = self._decoders[stream]
        return self._take(stream, decoder, decoder.decode_message, message, arrival_ns)

    def _take(
        self, stream: str, decoder: Decoder, decode: Callable[[Any], Sample], source: Any, arrival_ns: int
    ) -> Outcome:
        counters = self.counters[stream]
        counters["received"] += 1
        pairer = self._pairers.get(stream)
        try:
            sample = decode(source)
            samples = pairer.take(stream, sample) if pairer else (sample,)
        except DecodeError as error:
            cause = f"dropped:{error.cause}"
            if not counters[cause]:  # once per cause: at 500 Hz a log line a message helps nobody
                log.warning("%s: a message is dropped: %s", stream, error)
            counters[cause] += 1
            counters[Outcome.DROPPED.value] += 1
            return Outcome.DROPPED
        counters["decoded"] += 1
        if sample.unmatched:
            counters["unmatched"] += 1
        if decoder.changed_sets:
            counters["joint_sets_changed"] = decoder.changed_sets
        outcome = Outcome.WAITING
        if pairer:
            stream = pairer.name
            counters = self.counters[stream]
            counters["unpaired"] = pairer.unpaired
        for sample in samples:
            outcome = self.engine.push(stream, sample.stamp_ns, arrival_ns, sample.value)
            counters[outcome.value] += 1
        return outcome
