"""A recording through the engine: the frames that a robot would have seen (`deployed`), or could have (`ideal`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from robocache_ros.engine import grid
from robocache_ros.engine.engine import FusionEngine
from robocache_ros.engine.frames import Frames
from robocache_ros.engine.ingest import Ingest
from robocache_ros.errors import RoboCacheError

VISIBILITIES = ("ideal", "deployed")
NS_PER_S = 1_000_000_000


def run(
    messages: Iterable[tuple[str, int, bytes]],
    ingest: Ingest,
    first_ns: int,
    last_ns: int,
    *,
    visibility: str = "ideal",
    chunk: int = 256,
) -> Iterator[Frames]:
    """Fuse a recording on every tick of [first_ns, last_ns], some ticks at a time.

    Memory holds the samples between the log's time and the ticks that await them, however long the recording is.

    Args:
        messages: (stream name, log time in ns, CDR bytes), in the order of the log; the log time is the arrival.
        ingest: decodes and counts; its engine is unbounded.
        first_ns: ticks start at or after it.
        last_ns: and end at or before it.
        visibility: `ideal`: a tick sees every sample of the recording; `deployed`: what had arrived when it went out.
        chunk: ticks given at once, at least.
    """
    if visibility not in VISIBILITIES:
        raise RoboCacheError(f"visibility: {visibility!r} is not one of {', '.join(VISIBILITIES)}")
    engine = ingest.engine
    rate_hz = engine.spec.rate_hz
    tick = grid.first_at_or_after(first_ns, rate_hz)
    end = grid.last_at_or_before(last_ns, rate_hz) + 1
    awaited_ns = _awaited_ns(engine)

    def resolve(count: int) -> Frames:
        ticks = grid.ticks_ns(tick, count, rate_hz)
        frames = engine.resolve(ticks, engine.deadlines(ticks) if visibility == "deployed" else None)
        engine.prune(grid.tick_ns(tick + count, rate_hz))
        return frames

    chunk_ns = chunk * NS_PER_S // rate_hz
    enough_ns = grid.tick_ns(tick, rate_hz) + awaited_ns + chunk_ns
    for stream, log_ns, data in messages:
        if log_ns > enough_ns:
            count = min(end, grid.last_at_or_before(log_ns - awaited_ns, rate_hz)) - tick
            for start in range(0, count, chunk):
                size = min(chunk, count - start)
                yield resolve(size)
                tick += size
            enough_ns = grid.tick_ns(tick, rate_hz) + awaited_ns + chunk_ns
        ingest.serialized(stream, data, log_ns)
    while tick < end:
        size = min(chunk, end - tick)
        yield resolve(size)
        tick += size


def _awaited_ns(engine: FusionEngine) -> int:
    """How far past a tick the log must be read until nothing that could change the tick can come."""
    streams = engine.spec.streams
    ahead = max(max(s.max_gap_ns, s.max_age_ns) + s.max_skew_ns + abs(s.latency_ns) + s.pair_ns for s in streams)
    return ahead + engine.spec.delay_ns
