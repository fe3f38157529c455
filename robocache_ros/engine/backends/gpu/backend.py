"""The GPU backend: payloads in rings on the GPU; each tick is one small upload and one CUDA graph.

Frames have their own rings: the tensors of a tick stay valid while the next `FRAMES - 1` ticks are computed, and
its row for `horizon` ticks. Work that is launched on the current stream after `render` sees the complete tensors.
The host waits only for the row, in `Frames.rows()`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.buffer_pool import BufferPool, host_pool
from robocache_ros.engine.backends.gpu.allocation import allocate
from robocache_ros.engine.backends.gpu.media_ring import MediaRing
from robocache_ros.engine.backends.gpu.prepared_layouts import likely_variant
from robocache_ros.engine.backends.gpu.upload_queue import UploadQueue
from robocache_ros.engine.backends.gpu.vector_ring import VectorRing
from robocache_ros.engine.backends.interface import Int64, MemoryRow, Options, Selections
from robocache_ros.engine.frames import Frames, status_columns
from robocache_ros.ops.cuda.gpu_memory import new_event, new_stream, pinned
from robocache_ros.ops.image.nvjpeg import require_jpeg
from robocache_ros.ops.tick.prepared import ImageVariant, Variant
from robocache_ros.ops.tick.tick_plan import UPLOADS, TickPlan, VectorSource
from robocache_ros.spec.layout import Layout

FRAMES = 4  # number of ticks whose images and grids are kept
STAGING_BYTES = 4 * 2**20  # initial size of the pinned ring
GRAPHS = 16  # maximum number kept, one for each combination of streams with samples and of their image formats

Signature = tuple[Any, ...]


class GpuBackend:
    """Computes frames on a GPU.

    Args:
        layout: the columns; its spec names the streams.
        capacities: slots of each stream.
        device: CUDA device.
        options: how frames are computed.

    Raises:
        RoboCacheError: the GPU does not have enough free memory; the message names the stream and the amount.
    """

    def __init__(
        self,
        layout: Layout,
        capacities: Mapping[str, int],
        device: torch.device,
        options: Options,
    ) -> None:
        spec = layout.spec
        self.device = device
        self._layout = layout
        self._captures = 0
        self._graphs: dict[Signature, Any] = {}
        self._uploads = UploadQueue(device, STAGING_BYTES)
        self._host_pools: defaultdict[str, BufferPool] = defaultdict(host_pool)
        self._vectors = [VectorRing(s, capacities[s.name], device, self._uploads) for s in spec.vectors]
        if options.jpeg == "gpu":
            require_jpeg()
        self._media = [MediaRing(s, capacities[s.name], device, self._uploads, options, FRAMES) for s in spec.media]
        rings: list[VectorRing | MediaRing] = [*self._vectors, *self._media]
        self._rings = {ring.name: ring for ring in rings}
        images = sum(s.kind == "image" for s in spec.media)
        streams = list(zip(spec.vectors, self._vectors, strict=True))
        sources = [VectorSource(ring.rows, s.method, s.samples, s.reduce) for s, ring in streams]
        self._plan = TickPlan(sources, images, len(spec.media) - images, device)
        # Images and clouds are numbered separately from 0, whatever the order of the streams in the spec.
        kinds = [s.kind for s in spec.media]
        self._numbers = [(kind, kinds[:i].count(kind)) for i, kind in enumerate(kinds)]
        self._ticks = max(spec.horizon, FRAMES)
        # Every row is written twice, `_ticks` rows apart, so that the last `horizon` rows are always contiguous.
        self._rows = allocate("*", "rows", 2 * self._ticks, 4 * layout.row_width, device).view(torch.float32)
        self._host = pinned(self._ticks * 4 * max(layout.width, 1)).view(torch.float32).view(self._ticks, -1)
        self._done = [new_event() for _ in range(self._ticks)]
        width, ends = layout.width, range(self._ticks + 1, 2 * self._ticks + 1)
        self._fused = [self._rows[turn : turn + 1, :width] for turn in range(self._ticks)]
        self._windows = [self._rows[end - spec.horizon : end] for end in ends]
        self._fetched = [row[None, :width] for row in self._host]
        self._addresses = [row.data_ptr() for row in self._rows]
        self._turn = 0
        order = {s.name: i for i, s in enumerate(spec.streams)}
        self._blended = [(ring, order[s.name]) for s, ring in streams if not s.samples]
        self._windowed = [(ring, order[s.name]) for s, ring in streams if s.samples]
        self._media_columns = [order[ring.name] for ring in self._media]
        self._side = new_stream(device)  # graphs cannot be captured on the default stream
        self._warm_up()

    def buffer(self, feed: str, nbytes: int) -> NDArray[np.uint8]:
        """Memory for a message: pinned if its payload is copied to the GPU unchanged."""
        ring = self._rings.get(feed)
        if isinstance(ring, MediaRing) and not ring.from_host:
            return ring.buffer(nbytes)
        return self._host_pools[feed].acquire(nbytes)

    def put(self, stream: str, slot: int, value: Any) -> None:
        """Send the payload of a sample to the GPU."""
        self._rings[stream].put(slot, value)

    def put_rows(self, stream: str, slots: Int64, values: NDArray[np.float32]) -> None:
        """Send the values of samples of a vector stream to the GPU."""
        for slot, value in zip(slots.tolist(), values, strict=True):
            self.put(stream, slot, value)

    def drop(self, stream: str, slots: Sequence[int]) -> None:
        """Discard the samples in these slots."""
        ring = self._rings[stream]
        if isinstance(ring, MediaRing):
            ring.drop(slots)

    def check(self, stream: str, slot: int) -> None:
        """Raise ValueError if the payload is corrupt; waits until a compressed image is decoded."""
        ring = self._rings[stream]
        assert isinstance(ring, MediaRing)
        ring.check(slot)

    def render(self, ticks_ns: Int64, selections: Selections) -> Frames:
        """Compute the frames of T ticks: a single tick in the rings, several ticks in new tensors."""
        valid, age_ns = selections.valid, selections.age_ns
        if not len(ticks_ns):
            media = {ring.name: ring.tensors[0][:0] for ring in self._media}
            return Frames(ticks_ns, self._fused[0][:0], valid, age_ns, media, sample_age_ms=selections.sample_age_ms)
        rows = status_columns(valid, age_ns, selections.sample_age_ms)
        with torch.cuda.device(self.device):
            if len(ticks_ns) > 1:
                return self._several(ticks_ns, selections, rows)
            media = self._tick(selections, 0, rows[0])
        turn = self._turn
        in_rings = (self._windows[turn], self._fetched[turn], self._done[turn])
        return Frames(ticks_ns, self._fused[turn], valid, age_ns, media, *in_rings, selections.sample_age_ms)

    def restart(self) -> None:
        """Discard every sample and the rows of all ticks."""
        for ring in self._media:
            ring.restart()
        with torch.cuda.device(self.device):
            self._rows.zero_()

    def memory(self) -> list[MemoryRow]:
        """The memory in use, by stream and purpose."""
        rows, host = self._rows, self._host
        return [
            *(row for ring in self._rings.values() for row in ring.memory()),
            MemoryRow("", "rows", "gpu", len(rows), 4 * rows.shape[1]),
            MemoryRow("", "rows", "pinned", len(host), 4 * host.shape[1]),
            MemoryRow("", "plan", "gpu", 1, self._plan.nbytes),
            MemoryRow("", "plan", "pinned", UPLOADS, self._plan.nbytes),
            MemoryRow("", "staging", "pinned", 1, self._uploads.nbytes),
        ]

    def counters(self) -> dict[str, int]:
        """`stalls`: waits of the host; `reallocations`: samples larger than their slots; `captures`: CUDA graphs."""
        return {
            "stalls": self._uploads.stalls + self._plan.waits,
            "reallocations": sum(ring.reallocations for ring in self._media),
            "captures": self._captures,
        }

    def _warm_up(self) -> None:
        """Compile and load the kernels that the first ticks are likely to need, with an empty plan."""
        with torch.cuda.device(self.device):
            self._launch_each(tuple([likely_variant(stream) for stream in self._layout.spec.media]))
            torch.cuda.synchronize(self.device)

    def _tick(self, selections: Selections, k: int, status: Any) -> dict[str, Tensor]:
        """Launch tick k with `status` (its valid and age); returns its images and grids. Its row is at `_turn`."""
        plan = self._plan
        turn = self._turn = (self._turn + 1) % self._ticks
        lower, upper, weight = selections.lower[k].tolist(), selections.upper[k].tolist(), selections.weight[k].tolist()
        parts = [ring.part(lower[i]) for ring, i in zip(self._media, self._media_columns, strict=True)]
        plan.begin()
        plan.row(self._addresses[turn], self._addresses[turn + self._ticks], self._fetched[turn].data_ptr(), status)
        small = -1  # ticket of the latest copy that the tick needs
        for number, (vectors, i) in enumerate(self._blended):
            plan.vector(number, lower[i], upper[i], weight[i])
            if lower[i] >= 0:
                small = max(small, vectors.tickets[lower[i]], vectors.tickets[upper[i]])
        for number, (vectors, i) in enumerate(self._windowed):
            slots = selections.windows[i].rows_at(k)
            plan.window(number, slots)
            small = max([small, *(vectors.tickets[slot] for slot in slots)])
        for (kind, number), part in zip(self._numbers, parts, strict=True):
            if part.prepared:
                fill = plan.image if kind == "image" else plan.cloud
                fill(number, (part.out, part.before, part.nbytes, part.action), part.data, part.prepared)
        stream: Any = torch.cuda.current_stream()  # once per tick: the call costs as much as a launch
        self._uploads.wait((small, max([part.ticket for part in parts], default=-1)), stream)
        plan.upload(stream)
        self._launch(tuple([part.prepared.variant if part.prepared else None for part in parts]))
        self._done[turn].record(stream)
        self._uploads.after(self._done[turn])
        return {ring.name: part.tensor for ring, part in zip(self._media, parts, strict=True)}

    def _launch(self, variants: tuple[Variant | None, ...]) -> None:
        """Launch all kernels of a tick: one by one the first time, then as one graph."""
        graph = self._graphs.get(variants)
        if graph:
            graph.replay()
            return
        self._launch_each(variants)
        if len(self._graphs) == GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        self._graphs[variants] = self._capture(variants)
        self._captures += 1

    def _capture(self, variants: tuple[Variant | None, ...]) -> Any:
        # Not torch.cuda.graph: it waits for the GPU and collects garbage.
        graph = torch.cuda.CUDAGraph()
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._launch_each(variants)
            finally:
                graph.capture_end()
        return graph

    def _launch_each(self, variants: tuple[Variant | None, ...]) -> None:
        self._plan.launch_row()
        for (_, number), variant in zip(self._numbers, variants, strict=True):
            if isinstance(variant, ImageVariant):
                self._plan.launch_image(number, variant)
            elif variant:
                self._plan.launch_cloud(number, variant)

    def _several(self, ticks_ns: Int64, selections: Selections, rows: Any) -> Frames:
        fused = torch.empty((len(ticks_ns), self._layout.width), device=self.device)
        media = {r.name: r.tensors[0].new_empty((len(ticks_ns), *r.format.shape)) for r in self._media}
        for k in range(len(ticks_ns)):
            made = self._tick(selections, k, rows[k])
            fused[k] = self._fused[self._turn][0]
            for name, tensor in made.items():
                media[name][k] = tensor[0]
        ages = selections.sample_age_ms
        return Frames(ticks_ns, fused, selections.valid, selections.age_ns, media, sample_age_ms=ages)
