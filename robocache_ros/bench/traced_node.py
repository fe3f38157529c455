"""The fusion node of a measurement, with the times of messages, ticks and of the GPU."""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from robocache_ros.bench.processes import Columns, leave_result, read_options, say_ready
from robocache_ros.engine import Frames, FusionEngine, Ingest, Outcome
from robocache_ros.nodes import fusion_node
from robocache_ros.nodes.publishers import Outputs, RingOutput
from robocache_ros.ops.resample.selection import select_one
from robocache_ros.units import NS_PER_S

REBASE_NS = 1_000_000_000  # the clocks of GPU and host drift apart
EVENTS = 64  # that are pending at once; an event is read when its turn comes again


class Spans:
    """Times between pairs of GPU events, in ns after a time of the host: (spans,) int64, allocated at the start.

    Args:
        rows: the most that are kept.
    """

    def __init__(self, rows: int) -> None:
        self._found = Columns(("ns",), rows)
        self._pending: deque[tuple[Any, Any, int]] = deque()

    def add(self, begin: Any, end: Any, after_ns: int = 0) -> tuple[Any, Any] | None:
        """Keep a pair, to be read once it is complete; returns an earlier pair that is free, if there is one."""
        self._pending.append((begin, end, after_ns))
        return self._read() if len(self._pending) > EVENTS else None

    def read_ns(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Every span; waits for those that are not complete."""
        while self._pending:
            self._read()
        return self._found.to_dict()["ns"]

    def _read(self) -> tuple[Any, Any]:
        begin, end, after_ns = self._pending.popleft()
        end.synchronize()
        self._found.add(after_ns + round(begin.elapsed_time(end) * 1e6))
        return begin, end


class GpuTimeline:
    """When the work on a CUDA stream was complete, on the clock of the host.

    Args:
        rows: the most marks that are kept.
    """

    def __init__(self, rows: int) -> None:
        self._base: Any = None
        self._base_ns = 0
        self._spans = Spans(rows)
        self._free: list[Any] = []

    def mark(self, stream: Any) -> None:
        """Record when the work that is now queued on a stream is complete."""
        if time.time_ns() - self._base_ns > REBASE_NS:
            self._base = new_timer()
            self._base.record()
            self._base.synchronize()
            self._base_ns = time.time_ns()
        event = self._free.pop() if self._free else new_timer()
        event.record(stream)
        done = self._spans.add(self._base, event, self._base_ns)
        if done:
            self._free.append(done[1])

    def read_ns(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """(marks,) int64 host times."""
        return self._spans.read_ns()


def new_timer() -> Any:
    """A CUDA event that records its time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


JOINTS = "joints_position"
_STAMP = struct.Struct("<iI")


class Trace:
    """The records of a run.

    Args:
        rows: maximum number of recorded messages and ticks.
    """

    def __init__(self, rows: int) -> None:
        self.messages = Columns(("stream", "stamp_ns", "arrival_ns", "received_ns"), rows)
        steps = ("asked_ns", "made_ns", "ready_ns", "shared_ns", "published_ns")
        self.ticks = Columns(("tick_ns", *steps, "newest_joint_ns"), rows)
        self.asked_ns = self.ready_ns = self.shared_ns = self.newest_joint_ns = 0
        self.uploads = Columns(("stream", "stamp_ns"), rows)
        self.on_gpu = GpuTimeline(rows)
        self.tick_spans = Spans(rows)
        self._timers: list[tuple[Any, Any]] = []
        self.ingest: Ingest | None = None

    def follow_host(self, engine: FusionEngine) -> None:
        """Note when the engine is asked for ticks, and the newest joint sample that a tick is made of."""
        resolve = engine._resolve_one
        joints: Any = engine._streams.get(JOINTS)

        def noted(tick_ns: int, deadline_ns: int | None) -> Frames:
            self.asked_ns = time.time_ns()
            frames = resolve(tick_ns, deadline_ns)
            if joints:
                stamps, arrivals, _ = joints.index.numbers
                used = [row for row in select_one(stamps, tick_ns, joints.rule, arrivals, deadline_ns)[:2] if row >= 0]
                self.newest_joint_ns = max([stamps[row] for row in used], default=0)
            return frames

        traced: Any = engine
        traced._resolve_one = noted

    def follow(self, engine: FusionEngine) -> None:
        """Note the GPU's time for each tick."""
        backend: Any = engine._backend
        launch = backend._launch

        def timed(*arguments: Any) -> None:
            begin, end = self._timers.pop() if self._timers else (new_timer(), new_timer())
            begin.record()
            launch(*arguments)
            end.record()
            done = self.tick_spans.add(begin, end)
            if done:
                self._timers.append(done)

        backend._launch = timed

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Everything, by name."""
        found: dict[str, np.ndarray[Any, Any]] = {
            f"{group}.{name}": column
            for group, columns in (("messages", self.messages), ("ticks", self.ticks), ("uploads", self.uploads))
            for name, column in columns.to_dict().items()
        }
        if self._timers:
            found["uploads.done_ns"] = self.on_gpu.read_ns()
            found["ticks.gpu_us"] = self.tick_spans.read_ns() / 1e3
        return found


def instrument(trace: Trace) -> None:
    """Replace the classes of the node in this process by classes that record times."""
    replaced = {"Ingest": _traced_ingest(trace), "Outputs": _traced_outputs(trace), "RingOutput": _traced_ring(trace)}
    for name, traced in replaced.items():
        assert hasattr(fusion_node, name)
        setattr(fusion_node, name, traced)
    fusion_node.FusionNode = ReadyNode  # type: ignore[misc]


def _traced_ingest(trace: Trace) -> type[Ingest]:
    class TracedIngest(Ingest):
        def __init__(self, spec: Any, engine: FusionEngine, definitions: Any = None, *, live: bool = False) -> None:
            super().__init__(spec, engine, definitions, live=live)
            trace.ingest = self
            trace.follow_host(engine)
            self._cuda = engine.device.type == "cuda"
            if self._cuda:
                trace.follow(engine)
            self._media = {s.name for s in spec.media}
            topics: dict[str, str] = {}
            for stream in spec.streams:
                topics.setdefault(stream.topic, stream.name)
            names = [s.name for s in spec.streams]
            self._noted = {name: names.index(name) for name in topics.values()}  # one stream of each topic

        def serialized(self, stream: str, data: bytes | memoryview, arrival_ns: int) -> Outcome:
            outcome = super().serialized(stream, data, arrival_ns)
            number = self._noted.get(stream)
            if number is not None:
                seconds, nanoseconds = _STAMP.unpack_from(data, 4)
                stamp_ns = seconds * NS_PER_S + nanoseconds
                trace.messages.add(number, stamp_ns, arrival_ns, time.time_ns())
                if self._cuda and stream in self._media:
                    backend: Any = self.engine._backend
                    trace.uploads.add(number, stamp_ns)
                    trace.on_gpu.mark(backend._uploads.stream)
            return outcome

    return TracedIngest


def _traced_ring(trace: Trace) -> type[RingOutput]:
    class TracedRing(RingOutput):
        def announce(self) -> None:
            trace.shared_ns = time.time_ns()  # before: a consumer may have it while this thread is still in the call
            super().announce()

    return TracedRing


def _traced_outputs(trace: Trace) -> type[Outputs]:
    class TracedOutputs(Outputs):
        def publish(self, frames: Frames, wait_until_due: Callable[[int], None] = lambda tick_ns: None) -> None:
            made_ns = time.time_ns()

            def noted(tick_ns: int) -> None:
                trace.ready_ns = time.time_ns()
                wait_until_due(tick_ns)

            super().publish(frames, noted)
            steps = (trace.asked_ns, made_ns, trace.ready_ns, trace.shared_ns, time.time_ns())
            trace.ticks.add(int(frames.ticks_ns[-1]), *steps, trace.newest_joint_ns)

    return TracedOutputs


class ReadyNode(fusion_node.FusionNode):
    """The node, which reports to its parent when it is active."""

    def autostart(self) -> bool:
        """Configure and activate, then report it."""
        if not super().autostart():
            raise SystemExit("the node did not become active")
        say_ready()
        return True


def main() -> None:
    """Run as a child until it is interrupted."""
    options = read_options()
    trace = Trace(options["rows"])
    instrument(trace)
    parameters = {"spec": options["spec"], "device": options["device"], "autostart": "true"}
    arguments = [part for name, value in parameters.items() for part in ("-p", f"{name}:={value}")]
    fusion_node.main(["--ros-args", *arguments])
    assert trace.ingest
    engine = trace.ingest.engine
    names = [stream.name for stream in engine.spec.streams]
    result = {
        "streams": names,
        "device": str(engine.device),
        "counters": {name: {**trace.ingest.counters[name], **engine.lost(name)} for name in names},
        "engine": engine.counters(),
        "memory": [[row.stream, row.purpose, row.place, row.total_bytes] for row in engine.memory()],
        "rows_lost": trace.messages.lost + trace.ticks.lost,
    }
    leave_result(options["result"], result, trace.arrays())


if __name__ == "__main__":
    main()
