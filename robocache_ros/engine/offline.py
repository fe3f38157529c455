"""Runs a recording through the engine: the frames that a robot would have seen (`deployed`) or could have (`ideal`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine import tick_grid
from robocache_ros.engine.engine import FusionEngine
from robocache_ros.engine.frames import Frames
from robocache_ros.engine.ingest import WAIT_NS, Ingest
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import TF_TYPE, FusionSpec, StreamSpec

RUN_BYTES = 1 << 20  # maximum size of the vector messages that are collected and decoded together

Int64 = NDArray[np.int64]

VISIBILITIES = ("ideal", "deployed")


# More than 50 lines for its docstring and the functions that share its state.
def run(
    messages: Iterable[tuple[str, int, bytes | memoryview]],
    ingest: Ingest,
    first_ns: int,
    last_ns: int,
    *,
    visibility: str = "ideal",
    chunk: int = 256,
    chunk_bytes: int = 16 << 20,
) -> Iterator[Frames]:
    """Fuse a recording on every tick of [first_ns, last_ns], in chunks of ticks.

    Memory holds only the samples that pending ticks can use, whatever the length of the recording.

    Args:
        messages: (stream name, log time in ns, CDR bytes), in the order of the log; the log time is the arrival.
        ingest: decodes and counts; its engine is unbounded.
        first_ns: the first tick is at or after it.
        last_ns: the last tick is at or before it.
        visibility: `ideal`: a tick uses every sample of the recording; `deployed`: only samples that had arrived when
            the robot computed it.
        chunk: maximum number of ticks in each `Frames`.
        chunk_bytes: maximum size of the images and voxels in each `Frames`, unless a single tick exceeds it.

    Raises:
        RoboCacheError: the visibility is unknown.
    """
    if visibility not in VISIBILITIES:
        raise RoboCacheError(f"visibility: {visibility!r} is not one of {', '.join(VISIBILITIES)}")
    engine = ingest.engine
    rate_hz = engine.spec.rate_hz
    tick = tick_grid.first_at_or_after(first_ns, rate_hz)
    end = tick_grid.last_at_or_before(last_ns, rate_hz) + 1
    awaited_ns = reach_ns(engine)

    frames = engine.resolve(np.empty(0, np.int64))  # the newest frames: they show the sizes of images, if known

    def resolve(ticks: Int64) -> Frames:
        return engine.resolve(ticks, engine.deadlines(ticks) if visibility == "deployed" else None)

    def size() -> int:
        nbytes = sum(tensor.shape[1:].numel() * tensor.itemsize for tensor in frames.media.values())
        return min(chunk, max(1, chunk_bytes // max(1, nbytes)))

    def resolve_until(limit: int) -> Iterator[Frames]:
        nonlocal tick, frames
        while tick < limit:
            ticks = tick_grid.ticks_ns(tick, min(chunk, limit - tick), rate_hz)
            for first in range(len(ticks) if _image_awaits_size(engine, frames) else 0):
                frames = resolve(ticks[first : first + 1])
                if not _image_awaits_size(engine, frames):
                    break
            frames = resolve(ticks[: size()])
            tick += len(frames)
            engine.prune(tick_grid.tick_ns(tick, rate_hz))
            yield frames

    enough_ns = tick_grid.tick_ns(tick + size(), rate_hz) + awaited_ns
    # Streams do not depend on each other here, so that the messages of each stream can be pushed together.
    runs: defaultdict[str, tuple[list[bytes], list[int]]] = defaultdict(lambda: ([], []))
    vectors, collected = ingest.vectors, 0

    def push_runs() -> None:
        for stream, of_stream in runs.items():
            ingest.serialized_run(stream, *of_stream)
        runs.clear()

    for stream, log_ns, data in messages:
        if log_ns > enough_ns:
            push_runs()
            collected = 0
            yield from resolve_until(min(end, tick_grid.last_at_or_before(log_ns - awaited_ns, rate_hz)))
            enough_ns = tick_grid.tick_ns(tick + size(), rate_hz) + awaited_ns
        if stream in vectors:
            data_of, arrivals_ns = runs[stream]
            data_of.append(bytes(data))
            arrivals_ns.append(log_ns)
            collected += len(data)
            if collected > RUN_BYTES:
                push_runs()
                collected = 0
        else:
            ingest.serialized(stream, data, log_ns)
    push_runs()
    yield from resolve_until(end)


def _image_awaits_size(engine: FusionEngine, frames: Frames) -> bool:
    """Whether an image has arrived whose size the spec does not declare and no tick has shown yet."""
    unknown = {name for name, tensor in frames.media.items() if not tensor.shape[1:].numel()}
    return bool(unknown) and any(row.total_bytes for row in engine.memory() if row.stream in unknown)


def reach_ns(engine: FusionEngine) -> int:
    """How far past a tick the log must be read until no later message can change the tick.

    Messages logged longer before a tick do not change it either, except for streams that are held without limit, are
    on a clock of their own, or are placed by transforms.
    """
    streams = engine.spec.streams
    ahead = max(max(s.max_gap_ns, s.max_age_ns) + s.max_skew_ns + abs(s.latency_ns) + s.pair_ns for s in streams)
    return ahead + engine.spec.delay_ns + (WAIT_NS if engine.spec.framed else 0)


def has_memory(feed: StreamSpec, spec: FusionSpec) -> bool:
    """Whether ticks depend on messages of any age; images and clouds, which would fill the memory, are left out."""
    placed = feed.type == TF_TYPE and bool(spec.framed or spec.transforms)
    return feed.kind == "vector" and (feed.on_invalid == "hold" or feed.stamp == "device" or placed)
