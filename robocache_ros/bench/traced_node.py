"""The fusion node as it is, with a note kept of each message and each tick."""

from __future__ import annotations

import struct
import time
from typing import Any

import numpy as np
import torch

from robocache_ros.bench.children import leave_result, read_options, say_ready
from robocache_ros.bench.record import Columns
from robocache_ros.engine import Frames, FusionEngine, Ingest, Outcome
from robocache_ros.nodes import fusion_node
from robocache_ros.nodes.outputs import Outputs
from robocache_ros.nodes.ring import RingOutput

REBASE_NS = 1_000_000_000  # the GPU's clock and the host's drift apart
_STAMP = struct.Struct("<iI")


class GpuTimeline:
    """When something on a GPU's stream was through, by the host's clock."""

    def __init__(self) -> None:
        self._base: Any = None
        self._base_ns = 0
        self._marks: list[tuple[Any, Any, int]] = []

    def mark(self, stream: Any) -> None:
        """Note when all that a stream was given so far is through."""
        if time.time_ns() - self._base_ns > REBASE_NS:
            self._base = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._base.record()
            self._base.synchronize()
            self._base_ns = time.time_ns()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        self._marks.append((self._base, event, self._base_ns))

    def read_ns(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """(marks,) int64 host times."""
        torch.cuda.synchronize()
        return np.array([ns + round(base.elapsed_time(mark) * 1e6) for base, mark, ns in self._marks], np.int64)


class Trace:
    """All that is noted.

    Args:
        rows: room for so many messages and ticks.
    """

    def __init__(self, rows: int) -> None:
        self.messages = Columns(("stream", "stamp_ns", "arrival_ns", "taken_ns"), rows)
        self.ticks = Columns(("tick_ns", "asked_ns", "made_ns", "shared_ns", "published_ns"), rows)
        self.asked_ns = self.shared_ns = 0
        self.uploads = Columns(("stream", "stamp_ns"), rows)
        self.on_gpu = GpuTimeline()
        self.tick_spans: list[tuple[Any, Any]] = []
        self.ingest: Ingest | None = None

    def follow_host(self, engine: FusionEngine) -> None:
        """Note when the engine is asked for ticks."""
        resolve = engine.resolve

        def noted(*arguments: Any) -> Frames:
            self.asked_ns = time.time_ns()
            return resolve(*arguments)

        traced: Any = engine
        traced.resolve = noted

    def follow(self, engine: FusionEngine) -> None:
        """Note the GPU's time for each tick."""
        backend: Any = engine._backend
        launch = backend._launch

        def timed(*arguments: Any) -> None:
            begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begin.record()
            launch(*arguments)
            end.record()
            self.tick_spans.append((begin, end))

        backend._launch = timed

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Everything, by name."""
        found = {
            f"{group}.{name}": column
            for group, columns in (("messages", self.messages), ("ticks", self.ticks), ("uploads", self.uploads))
            for name, column in columns.to_dict().items()
        }
        if self.tick_spans:
            found["uploads.done_ns"] = self.on_gpu.read_ns()
            found["ticks.gpu_us"] = np.array([begin.elapsed_time(end) * 1e3 for begin, end in self.tick_spans])
        return found


def instrument(trace: Trace) -> None:
    """Have the node of this process keep notes."""

    class TracedIngest(Ingest):
        def __init__(self, spec: Any, engine: FusionEngine, definitions: Any = None) -> None:
            super().__init__(spec, engine, definitions)
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

        def serialized(self, stream: str, data: bytes, arrival_ns: int) -> Outcome:
            outcome = super().serialized(stream, data, arrival_ns)
            number = self._noted.get(stream)
            if number is not None:
                seconds, nanoseconds = _STAMP.unpack_from(data, 4)
                stamp_ns = seconds * 1_000_000_000 + nanoseconds
                trace.messages.add(number, stamp_ns, arrival_ns, time.time_ns())
                if self._cuda and stream in self._media:
                    backend: Any = self.engine._backend
                    trace.uploads.add(number, stamp_ns)
                    trace.on_gpu.mark(backend._uplink._lanes[1])
            return outcome

    class TracedRing(RingOutput):
        def publish(self, frames: Frames, window: torch.Tensor) -> None:
            super().publish(frames, window)
            trace.shared_ns = time.time_ns()

    class TracedOutputs(Outputs):
        def publish(self, frames: Frames) -> None:
            made_ns = time.time_ns()
            super().publish(frames)
            trace.ticks.add(int(frames.ticks_ns[-1]), trace.asked_ns, made_ns, trace.shared_ns, time.time_ns())

    class ReadyNode(fusion_node.FusionNode):
        def autostart(self) -> None:
            super().autostart()
            if self._fusion and self._fusion.beat:
                say_ready()
            else:
                raise SystemExit("the node did not become active")

    replaced = {"Ingest": TracedIngest, "Outputs": TracedOutputs, "RingOutput": TracedRing, "FusionNode": ReadyNode}
    for name, traced in replaced.items():
        assert hasattr(fusion_node, name)
        setattr(fusion_node, name, traced)


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
        "unnoted": trace.messages.lost + trace.ticks.lost,
    }
    leave_result(options["result"], result, trace.arrays())


if __name__ == "__main__":
    main()
