"""The GPU backend: uploads, rings of samples on the GPU, and the kernels of a tick."""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.buffer_pool import BufferPool, buffer_for, host_pool
from robocache_ros.decode import decode_compressed
from robocache_ros.decode.payloads import ImagePayload, PlacedLayout
from robocache_ros.engine.backends.interface import Int64, MemoryRow, Options, Selections, TickSelections
from robocache_ros.engine.backends.media import (
    DecodeThread,
    Job,
    Payload,
    decode_on_gpu,
    image_options,
    sensor_pose,
    tensor_format,
    voxelization_of,
    warm_up,
)
from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda.kernels import (
    copy_async,
    is_current,
    new_event,
    new_stream,
    pinned,
    raw_stream,
    record_event,
    wait_event,
)
from robocache_ros.ops.image.formats import PACKED, RESIZE, ImageLayout
from robocache_ros.ops.image.nvjpeg import require_jpeg
from robocache_ros.ops.tick import (
    KEEP,
    MAKE,
    UPLOADS,
    ZERO,
    CloudVariant,
    ImageVariant,
    Prepared,
    TickPlan,
    Variant,
    VectorSource,
    prepare_cloud,
    prepare_depth,
    prepare_image,
)
from robocache_ros.ops.voxel.layouts import DepthImageLayout
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.layout import Layout
from robocache_ros.units import NS_PER_MS


def allocate(stream: str, purpose: str, slots: int, slot_bytes: int, device: torch.device) -> Tensor:
    """(slots, slot_bytes) uint8 zeros on the GPU, ready for use on every CUDA stream.

    Raises:
        RoboCacheError: the GPU does not have enough free memory.
    """
    try:
        block = torch.zeros((slots, slot_bytes), dtype=torch.uint8, device=device)
    except torch.cuda.OutOfMemoryError:
        free, total = (amount / 2**20 for amount in torch.cuda.mem_get_info(device))
        raise RoboCacheError(
            f"streams.{stream}: its {purpose} need {slots * slot_bytes / 2**20:,.1f} MiB ({slots} slots of "
            f"{slot_bytes:,} bytes), and {free:,.1f} of the {total:,.1f} MiB on {device} are free; give the stream its "
            f"rate_hz, lower max_age_ms, max_gap_ms or delay_ms, or use device: cpu"
        ) from None
    torch.cuda.current_stream(device).synchronize()
    return block


log = logging.getLogger(__name__)

ALIGNMENT = 256
RETIRE_AT = 8  # number of in-flight copies before the queue checks for completed ones


class Staging:
    """Allocates parts of a ring of bytes; they are released in the order of their allocation."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.head = 0  # bytes allocated so far, including the gaps at the end of the ring
        self._tail = 0  # bytes released so far

    def claim(self, size: int) -> int | None:
        """Offset of `size` contiguous bytes; None if not enough are free."""
        start = self.head % self.nbytes
        size = -(-size // ALIGNMENT) * ALIGNMENT
        gap = self.nbytes - start if start + size > self.nbytes else 0
        if self.head + gap + size - self._tail > self.nbytes:
            return None
        self.head += gap + size
        return 0 if gap else start

    def release(self, head: int) -> None:
        """Release all parts that were allocated when `head` had this value."""
        self._tail = head


class UploadQueue:
    """Copies images and clouds to the GPU; the host waits only if the ring is full, which `stalls` counts.

    Args:
        device: CUDA device.
        nbytes: initial size of the pinned ring.
    """

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.stalls = 0
        self.stream = new_stream(device)  # of its own: a row of joints does not wait behind a camera image
        self._device = device
        self._handle = int(self.stream.cuda_stream)
        # In-flight copies: the head of the ring after each copy, the event after it, and the memory that it reads.
        self._in_flight: deque[tuple[int, Any, Any]] = deque()
        self._retired = 0  # number of copies that are complete and removed from `_in_flight`
        self._events: list[Any] = []
        self._use(nbytes)

    @property
    def nbytes(self) -> int:
        """Size of the pinned ring in bytes."""
        return self._staging.nbytes

    def _use(self, nbytes: int) -> None:
        self._pinned = pinned(-(-nbytes // ALIGNMENT) * ALIGNMENT)
        self._bytes: NDArray[np.uint8] = self._pinned.numpy()
        self._base = self._pinned.data_ptr()
        self._staging = Staging(len(self._bytes))

    def reserve(self, nbytes: int) -> None:
        """Make the ring at least this large; if it must grow, this waits for all in-flight copies."""
        if nbytes > self.nbytes:
            while self._in_flight:
                self._await_oldest()
            self._use(nbytes)

    def send(self, data: NDArray[np.uint8], target: int) -> int:
        """Copy (nbytes,) uint8 to an address on the GPU; returns a ticket for the copy.

        The caller may reuse `data` immediately.

        Kernels that still read the target must come before an event that was passed to `after`.
        """
        size = data.nbytes
        if len(self._in_flight) >= RETIRE_AT:
            self.retire()
        offset = self._claim(size)
        self._bytes[offset : offset + size] = data
        return self._copy(target, self._base + offset, size, None)

    def send_from(self, source: int, data: NDArray[np.uint8], target: int) -> int:
        """Like `send`, for `data` at address `source` in pinned memory; it is kept until the copy is complete."""
        if len(self._in_flight) >= RETIRE_AT:
            self.retire()
        return self._copy(target, source, data.nbytes, data)

    def wait(self, ticket: int, stream: int) -> None:
        """Make a CUDA stream wait for a copy and all before it; the host does not wait. -1: no copy."""
        if ticket >= self._retired:
            wait_event(stream, self._in_flight[ticket - self._retired][1])

    def after(self, event: Any) -> None:
        """Make later copies wait for an event that comes after the kernels that read the memory to overwrite."""
        wait_event(self._handle, event)

    def retire(self) -> None:
        """Release the memory of completed copies."""
        while self._in_flight and self._in_flight[0][1].query():
            self._retire_oldest()
        if not self._in_flight:
            self._staging = Staging(self._staging.nbytes)  # empty, so that all of it is contiguous again

    def _copy(self, target: int, source: int, nbytes: int, memory: Any) -> int:
        copy_async(target, source, nbytes, self._handle)
        event = self._events.pop() if self._events else new_event(self._device)
        record_event(event, self._handle)
        self._in_flight.append((self._staging.head, event, memory))
        return self._retired + len(self._in_flight) - 1

    def _claim(self, size: int) -> int:
        if size > self.nbytes:
            log.warning("the pinned ring of the uploads grows from %d to %d bytes", self.nbytes, 2 * size)
            self.reserve(2 * size)
        offset = self._staging.claim(size)
        if offset is None:
            self.retire()
            offset = self._staging.claim(size)
        if offset is None:
            if not self.stalls:
                log.warning("samples arrive faster than they are copied to the GPU: the host waits")
            self.stalls += 1
        while offset is None:
            self._await_oldest()
            offset = self._staging.claim(size)
        return offset

    def _await_oldest(self) -> None:
        self._in_flight[0][1].synchronize()
        self.retire()

    def _retire_oldest(self) -> None:
        head, event, _ = self._in_flight.popleft()
        self._staging.release(head)
        self._events.append(event)
        self._retired += 1


MediaLayout: TypeAlias = ImageLayout | PlacedLayout
LayoutKey: TypeAlias = tuple[int, MediaLayout]  # the number of bytes, and their layout

MAX_LAYOUTS = 32  # maximum number cached: the number of points of a cloud may change every time


def likely_variant(stream: StreamSpec) -> Variant:
    """The kernel variant that a stream needs, unless its images have a rare encoding."""
    if stream.voxels:
        cells, is_depth = math.prod(stream.voxels.shape), int(bool(stream.camera_info))
        return CloudVariant(stream.voxels.reduce, len(stream.voxels.features), cells, is_depth)
    assert stream.image
    return ImageVariant(PACKED, RESIZE[stream.image.resize], 1)


class PreparedLayouts:
    """Checks layouts and caches what to launch for them.

    Args:
        stream: an image or cloud stream.
        normalized: return images as float32.
        device: CUDA device of the scratch memory for reduced features.
    """

    def __init__(self, stream: StreamSpec, normalized: bool, device: torch.device) -> None:
        self._stream = stream
        self._normalized = normalized
        self._by_layout: dict[LayoutKey, Prepared] = {}
        self._latest: tuple[LayoutKey, Prepared] | None = None  # compared first: the hash of a layout takes longer
        self._sums: Tensor | None = None
        if stream.voxels and stream.voxels.features:
            cells = math.prod(stream.voxels.shape)
            sums = allocate(stream.name, "sums", len(stream.voxels.features) + 1, 8 * cells, device)
            self._sums = sums.view(torch.int64)

    @property
    def sums_bytes(self) -> int:
        """Size of the scratch memory in bytes; 0 if the stream needs none."""
        return 0 if self._sums is None else self._sums.nbytes

    def prepare(self, key: LayoutKey) -> Prepared:
        """What to launch for a sample with a layout; raises ValueError if the layout is not possible."""
        if self._latest and self._latest[0] == key:
            return self._latest[1]
        prepared = self._by_layout.get(key)
        if prepared is None:
            if len(self._by_layout) == MAX_LAYOUTS:
                self._by_layout.clear()
            prepared = self._by_layout[key] = self._prepare(*key)
        self._latest = key, prepared
        return prepared

    def _prepare(self, nbytes: int, layout: MediaLayout) -> Prepared:
        if isinstance(layout, ImageLayout):
            return prepare_image(nbytes, layout, image_options(self._stream, self._normalized))
        pose, voxelization = sensor_pose(layout.transform, self._stream), voxelization_of(self._stream)
        if isinstance(layout.layout, DepthImageLayout):
            return prepare_depth(nbytes, layout.layout, pose, voxelization, self._sums)
        return prepare_cloud(nbytes, layout.layout, pose, voxelization, self._sums)


class VectorRows:
    """The values of a vector stream's samples on the host; the plan of a tick has those that the tick needs.

    Args:
        stream: a vector stream.
        slots: number of samples to keep.
    """

    def __init__(self, stream: StreamSpec, slots: int) -> None:
        self.name = stream.name
        self.rows = [bytes(4 * stream.dim)] * slots

    def put(self, slot: int, value: NDArray[np.float32]) -> None:
        """Keep (D,) float32 values."""
        self.rows[slot] = np.asarray(value, np.float32).tobytes()

    def memory(self) -> list[MemoryRow]:
        """The memory in use."""
        return [MemoryRow(self.name, "samples", "host", len(self.rows), len(self.rows[0]))]


PINNED_BLOCKS = 5  # for messages: two to receive next, one being decoded, two being copied
DECODED_SLOTS = 2  # for decoded images: one that a tick reads, one being copied


class _Sample:
    """The state of the image or cloud in a slot."""

    __slots__ = ("job", "key", "packed", "place", "prepared", "serial", "ticket")

    def __init__(self, serial: int) -> None:
        self.serial = serial  # unique in the stream
        self.packed: ImagePayload | None = None  # a compressed image, on the host
        self.job: Job | None = None  # decoding of the image, until a tick has used it
        self.key: LayoutKey | None = None  # the layout of its raw bytes, once they are known
        self.place = -1  # the slot of its raw bytes on the GPU
        self.ticket = -1  # ticket of their copy
        self.prepared: Prepared | None = None  # set once the sample is checked


class Part(NamedTuple):
    """A media stream's part of a tick, as the tick's plan describes it."""

    action: int
    out: int  # addresses
    before: int
    nbytes: int
    data: int
    prepared: Prepared | None  # None until the first sample determines what to launch
    ticket: int
    tensor: Tensor  # (1, ...) at `out`


class MediaRing:
    """Raw images or clouds on the GPU, and the tensors of the last ticks.

    Compressed images are decoded on the host, in a separate thread with the CPU engine's decoder, and copied when a
    tick uses one. With `jpeg: gpu`, nvJPEG decodes jpeg images at that moment.

    Args:
        stream: an image or cloud stream.
        slots: number of samples to keep.
        device: CUDA device.
        uploads: copies the samples to the GPU.
        options: how the tensors are computed.
        frames: number of ticks whose tensors are kept.
    """

    def __init__(
        self, stream: StreamSpec, slots: int, device: torch.device, uploads: UploadQueue, options: Options, frames: int
    ) -> None:
        self.name = stream.name
        self.format = tensor_format(stream, options.normalized)
        self.reallocations = 0
        self._stream = stream
        self._device = device
        self._uploads = uploads
        self._frames = frames
        self._nvjpeg = options.jpeg == "gpu"
        self._pixels: tuple[int, Tensor] | None = None  # serial and pixels of the last sample decoded by nvJPEG
        self._compressed = stream.kind == "image" and stream.type.endswith("/CompressedImage")
        self._thread = DecodeThread(self.name, decode_compressed, lambda image: int(image.data.nbytes))
        if self._compressed:
            warm_up(decode_compressed)
        self._places = DECODED_SLOTS if self._compressed else slots
        self._serials = [0] * self._places  # serial of the sample whose raw bytes are in each place
        self._use(torch.empty((self._places, 0), dtype=torch.uint8, device=device))
        self._samples: dict[int, _Sample] = {}
        self._serial = 0
        self._layouts = PreparedLayouts(stream, options.normalized, device)
        self._latest: Prepared | None = None
        self._accepted: Prepared | None = None  # the newest one whose format was compared with that of `tensors`
        self._shown = self._turn = 0  # serial of the sample in the newest tensor, 0 for none; index of that tensor
        # Compressed images are decoded, and depth images are joined with their colours, on the host.
        self.from_host = stream.type.endswith("/CompressedImage") or bool(stream.color)
        self._pool = BufferPool(lambda nbytes: pinned(nbytes).numpy(), 0 if self.from_host else PINNED_BLOCKS)
        self._make_tensors()
        if stream.name in options.payload_bytes:
            self._grow(options.payload_bytes[stream.name])

    def buffer(self, nbytes: int) -> NDArray[np.uint8]:
        """Pinned memory for a message: its payload is copied to the GPU from there."""
        self._uploads.retire()
        return self._pool.acquire(nbytes)

    def put(self, slot: int, payload: Payload) -> None:
        """Send an image or cloud to its slot, in place of what is there; start decoding a compressed image."""
        self.drop([slot])
        self._serial += 1
        sample = self._samples[slot] = _Sample(self._serial)
        if self._compressed:
            assert isinstance(payload, ImagePayload)
            sample.packed = payload
            if not self._by_nvjpeg(payload):
                sample.job = self._thread.submit(payload)
        else:
            self._send(sample, slot, payload)

    def drop(self, slots: Sequence[int]) -> None:
        """Discard the samples in these slots."""
        for slot in slots:
            sample = self._samples.pop(slot, None)
            if sample and sample.job:
                self._thread.discard(sample.job)

    def check(self, slot: int) -> None:
        """Prepare a sample for launch; raises ValueError if it is corrupt or its format differs from earlier ones."""
        sample = self._samples[slot]
        if sample.prepared:
            return
        if sample.packed:
            self._decode(sample)
        assert sample.key
        prepared = self._layouts.prepare(sample.key)
        if prepared is not self._accepted:
            self.format.require(prepared.shape, prepared.dtype)
            if ((1, *prepared.shape), prepared.dtype) != (self.tensors[0].shape, self.tensors[0].dtype):
                self._make_tensors()
            self._accepted = prepared
        sample.prepared = prepared

    def part(self, slot: int) -> Part:
        """The next tick's part, computed from a checked slot, or from no sample (-1)."""
        if self._compressed:
            self._thread.end_tick()
        before = self._addresses[self._turn]
        self._turn = (self._turn + 1) % self._frames
        action, data, ticket = ZERO, 0, -1
        if slot < 0:
            self._shown = 0
        else:
            sample = self._samples[slot]
            action = KEEP
            if sample.serial != self._shown:
                self._shown, self._latest = sample.serial, sample.prepared
                action, data, ticket = MAKE, self._address(sample), sample.ticket
        tensor = self.tensors[self._turn]
        return Part(action, self._addresses[self._turn], before, self._nbytes, data, self._latest, ticket, tensor)

    def restart(self) -> None:
        """Discard every sample."""
        self.drop(list(self._samples))
        self._shown = 0

    def memory(self) -> list[MemoryRow]:
        """The memory in use."""
        sums = [MemoryRow(self.name, "sums", "gpu", 1, self._layouts.sums_bytes)] if self._layouts.sums_bytes else []
        raw = MemoryRow(self.name, "samples", "gpu", self._places, self._place_bytes)
        blocks = self._pool.nbytes
        messages = [MemoryRow(self.name, "messages", "pinned", len(blocks), max(blocks))] if blocks else []
        return [raw, *messages, *sums, MemoryRow(self.name, "frames", "gpu", self._frames, self._nbytes)]

    def _send(self, sample: _Sample, place: int, payload: Payload) -> None:
        data = payload.data
        nbytes = data.nbytes
        if nbytes > self._place_bytes:
            self._grow(nbytes)
        sample.key = nbytes, payload.layout
        sample.place = place
        self._serials[place] = sample.serial
        target = self._base + place * self._place_bytes
        source = self._pool.address(data)
        if source is None:
            sample.ticket = self._uploads.send(data, target)
        else:
            sample.ticket = self._uploads.send_from(source, data, target)

    def _by_nvjpeg(self, image: ImagePayload) -> bool:
        return self._nvjpeg and image.encoding == "jpeg"

    def _decode(self, sample: _Sample) -> None:
        packed = sample.packed
        assert packed
        if self._by_nvjpeg(packed):
            pixels, layout = decode_on_gpu(packed, self._device)
            sample.key = pixels.nbytes, layout
            self._pixels = (sample.serial, pixels)
            return
        job, sample.job = sample.job, None
        decoded = self._thread.result(job) if job else decode_compressed(packed)
        self._send(sample, sample.serial % DECODED_SLOTS, decoded)

    def _address(self, sample: _Sample) -> int:
        """The address of a sample's raw bytes; they are valid once their copy is complete."""
        for _ in range(2):
            if self._pixels and self._pixels[0] == sample.serial:
                return self._pixels[1].data_ptr()
            if sample.place >= 0 and self._serials[sample.place] == sample.serial:
                return self._base + sample.place * self._place_bytes
            self._decode(sample)  # again: a call for several ticks has decoded other images since
        raise AssertionError("a decoded image was moved")

    def _grow(self, nbytes: int) -> None:
        """Enlarge every place if needed; the contents are kept."""
        before = self._raw
        wanted = nbytes if self._stream.kind == "image" else nbytes + nbytes // 4  # the number of points varies
        slot_bytes = -(-wanted // ALIGNMENT) * ALIGNMENT
        if before.shape[1]:
            self.reallocations += 1
            text = "%s: a sample has %d bytes, where the buffer has %d; its GPU memory is reallocated"
            log.warning(text, self.name, nbytes, before.shape[1])
            torch.cuda.synchronize(self._device)
        self._use(allocate(self.name, "samples", self._places, slot_bytes, self._device))
        self._raw[:, : before.shape[1]] = before
        torch.cuda.current_stream(self._device).synchronize()
        self._uploads.reserve(3 * slot_bytes)
        self._pool.reserve(buffer_for(slot_bytes))

    def _use(self, raw: Tensor) -> None:
        self._raw, self._base, self._place_bytes = raw, raw.data_ptr(), raw.shape[1]

    def _make_tensors(self) -> None:
        shape, dtype = self.format.shape, self.format.dtype
        nbytes = math.prod(shape) * dtype.itemsize
        block = allocate(self.name, "frames", self._frames, max(-(-nbytes // 16) * 16, 16), self._device)
        self.tensors = [row[:nbytes].view(dtype).view(1, *shape) for row in block]
        self._addresses = [row.data_ptr() for row in block]
        self._nbytes = nbytes
        self._shown = 0


# The GPU backend: payloads in rings on the GPU; each tick is one small upload and one CUDA graph.
#
# Frames have their own rings: the tensors of a tick stay valid while the next `FRAMES - 1` ticks are computed, and
# its row for `horizon` ticks. Work that is launched on the current stream after `render` sees the complete tensors.
# The host waits only for the row, in `Frames.rows()`.

MAX_FRAMES = 4  # number of ticks whose images and grids are kept
STAGING_BYTES = 4 * 2**20  # initial size of the pinned ring
MAX_GRAPHS = 16  # maximum number kept, one for each combination of streams with samples and of their image formats

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
        self._vectors = [VectorRows(s, capacities[s.name]) for s in spec.vectors]
        if options.jpeg == "gpu":
            require_jpeg()
        self._media = [MediaRing(s, capacities[s.name], device, self._uploads, options, MAX_FRAMES) for s in spec.media]
        rings: list[VectorRows | MediaRing] = [*self._vectors, *self._media]
        self._rings = {ring.name: ring for ring in rings}
        images = sum(s.kind == "image" for s in spec.media)
        streams = list(zip(spec.vectors, self._vectors, strict=True))
        sources = [VectorSource(kept.rows, s.dim, s.method, s.samples, s.reduce) for s, kept in streams]
        self._plan = TickPlan(sources, images, len(spec.media) - images, device)
        # Images and clouds are numbered separately from 0, whatever the order of the streams in the spec.
        kinds = [s.kind for s in spec.media]
        self._numbers = [(kind, kinds[:i].count(kind)) for i, kind in enumerate(kinds)]
        self._ticks = max(spec.horizon, MAX_FRAMES)
        # Every row is written twice, `_ticks` rows apart, so that the last `horizon` rows are always contiguous.
        self._rows = allocate("*", "rows", 2 * self._ticks, 4 * layout.row_width, device).view(torch.float32)
        self._host = pinned(self._ticks * 4 * max(layout.width, 1)).view(torch.float32).view(self._ticks, -1)
        self._done = [new_event(device) for _ in range(self._ticks)]
        width, ends = layout.width, range(self._ticks + 1, 2 * self._ticks + 1)
        self._fused = [self._rows[turn : turn + 1, :width] for turn in range(self._ticks)]
        self._windows = [self._rows[end - spec.horizon : end] for end in ends]
        self._fetched = [row[None, :width] for row in self._host]
        addresses = [row.data_ptr() for row in self._rows]
        hosts = [row.data_ptr() for row in self._host]
        self._addresses = list(zip(addresses, addresses[self._ticks :], hosts, strict=False))
        self._no_ages = np.empty((1, 0), np.float32)
        self._turn = 0
        order = {s.name: i for i, s in enumerate(spec.streams)}
        self._blended = [order[s.name] for s in spec.vectors if not s.samples]
        self._windowed = [order[s.name] for s in spec.vectors if s.samples]
        self._media_columns = [(ring, order[ring.name]) for ring in self._media]
        self._side = new_stream(device)  # graphs cannot be captured on the default stream
        self._warm_up()

    def buffer(self, feed: str, nbytes: int) -> NDArray[np.uint8]:
        """Memory for a message: pinned if its payload is copied to the GPU unchanged."""
        ring = self._rings.get(feed)
        if isinstance(ring, MediaRing) and not ring.from_host:
            return ring.buffer(nbytes)
        return self._host_pools[feed].acquire(nbytes)

    def put(self, stream: str, slot: int, value: Any) -> None:
        """Keep the payload of a sample: of an image or a cloud, on the GPU."""
        self._rings[stream].put(slot, value)

    def put_rows(self, stream: str, slots: Int64, values: NDArray[np.float32]) -> None:
        """Keep the values of samples of a vector stream."""
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
        """Compute the frames of T ticks in new tensors."""
        valid, age_ns, ages = selections.valid, selections.age_ns, selections.sample_age_ms
        if not len(ticks_ns):
            media = {ring.name: ring.tensors[0][:0] for ring in self._media}
            return Frames(ticks_ns, self._fused[0][:0], valid, age_ns, media, sample_age_ms=ages)
        with torch.cuda.device(self.device):
            fused = torch.empty((len(ticks_ns), self._layout.width), device=self.device)
            media = {r.name: r.tensors[0].new_empty((len(ticks_ns), *r.format.shape)) for r in self._media}
            for k, tick_ns in enumerate(ticks_ns.tolist()):
                made = self.render_one(tick_ns, selections.one(k))
                fused[k] = made.fused[0]
                for name, tensor in made.media.items():
                    media[name][k] = tensor[0]
        return Frames(ticks_ns, fused, valid, age_ns, media, sample_age_ms=ages)

    def render_one(self, tick_ns: int, selected: TickSelections) -> Frames:
        """Compute the frame of a single tick in the rings."""
        if not is_current(self.device.index):
            with torch.cuda.device(self.device):
                return self.render_one(tick_ns, selected)
        streams, plan = selected.streams, self._plan
        turn = self._turn = (self._turn + 1) % self._ticks
        stream, done = raw_stream(self.device.index), self._done[turn]
        valid, ages_ns = [found[3] for found in streams], [found[4] for found in streams]
        parts = [ring.part(streams[i][0]) for ring, i in self._media_columns]
        plan.begin(self._done[turn - UPLOADS])
        # As `status_columns`: divided in float64, and rounded to float32 where it is stored.
        status = [*valid, *[float(age) / NS_PER_MS for age in ages_ns], *selected.sample_age_ms]
        blended, windows = [streams[i] for i in self._blended], [selected.windows[i] for i in self._windowed]
        plan.row(self._addresses[turn], status, blended, windows)
        for (kind, number), part in zip(self._numbers, parts, strict=True):
            if part.prepared:
                fill = plan.image if kind == "image" else plan.cloud
                fill(number, (part.out, part.before, part.nbytes, part.action), part.data, part.prepared)
        plan.upload(stream)
        if parts:
            self._uploads.wait(max([part.ticket for part in parts]), stream)
        self._launch(tuple([part.prepared.variant if part.prepared else None for part in parts]))
        record_event(done, stream)
        if parts:
            self._uploads.after(done)
        media = {ring.name: part.tensor for ring, part in zip(self._media, parts, strict=True)}
        ages = np.array([selected.sample_age_ms], np.float32) if selected.sample_age_ms else self._no_ages
        return Frames(
            np.array([tick_ns], np.int64),
            self._fused[turn],
            np.array([valid], np.uint8),
            np.array([ages_ns], np.int64),
            media,
            self._windows[turn],
            self._fetched[turn],
            done,
            ages,
        )

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

    def _launch(self, variants: tuple[Variant | None, ...]) -> None:
        """Launch all kernels of a tick: one by one the first time, then as one graph."""
        graph = self._graphs.get(variants)
        if graph:
            graph.replay()
            return
        self._launch_each(variants)
        if len(self._graphs) == MAX_GRAPHS:
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
