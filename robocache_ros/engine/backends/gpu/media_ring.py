"""The samples of one image or cloud stream in GPU memory as received, and the tensors of the last ticks."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.buffer_pool import BufferPool, buffer_for
from robocache_ros.decode import decode_compressed
from robocache_ros.decode.payloads import ImagePayload
from robocache_ros.engine.backends.decode_thread import DecodeThread, Job, warm_up
from robocache_ros.engine.backends.gpu.allocation import allocate
from robocache_ros.engine.backends.gpu.prepared_layouts import Key, PreparedLayouts
from robocache_ros.engine.backends.gpu.upload_queue import ALIGNMENT, LARGE, UploadQueue
from robocache_ros.engine.backends.interface import MemoryRow, Options
from robocache_ros.engine.backends.media_tensors import Payload, decode_on_gpu, tensor_format
from robocache_ros.ops.cuda.gpu_memory import pinned
from robocache_ros.ops.tick.prepared import Prepared
from robocache_ros.ops.tick.tasks import KEEP, MAKE, ZERO
from robocache_ros.spec import StreamSpec

log = logging.getLogger(__name__)

PINNED_BLOCKS = 5  # for messages: two to receive next, one being decoded, two being copied
DECODED_SLOTS = 2  # for decoded images: one that a tick reads, one being copied


class _Sample:
    """The state of the image or cloud in a slot."""

    __slots__ = ("job", "key", "packed", "place", "prepared", "serial", "ticket")

    def __init__(self, serial: int) -> None:
        self.serial = serial  # unique in the stream
        self.packed: ImagePayload | None = None  # a compressed image, on the host
        self.job: Job | None = None  # decoding of the image, until a tick has used it
        self.key: Key | None = None  # the layout of its raw bytes, once they are known
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
        self._raw = torch.empty((self._places, 0), dtype=torch.uint8, device=device)
        self._samples: dict[int, _Sample] = {}
        self._serial = 0
        self._layouts = PreparedLayouts(stream, options.normalized, device)
        self._latest: Prepared | None = None
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
        """Send an image or cloud to its slot; keep a compressed image and start decoding it."""
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
        self.format.require(prepared.shape, prepared.dtype)
        if ((1, *prepared.shape), prepared.dtype) != (self.tensors[0].shape, self.tensors[0].dtype):
            self._make_tensors()
        sample.prepared = prepared

    def part(self, slot: int) -> Part:
        """The next tick's part, computed from a checked slot, or from no sample (-1)."""
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
        raw = MemoryRow(self.name, "samples", "gpu", self._places, self._raw.shape[1])
        blocks = self._pool.nbytes
        messages = [MemoryRow(self.name, "messages", "pinned", len(blocks), max(blocks))] if blocks else []
        return [raw, *messages, *sums, MemoryRow(self.name, "frames", "gpu", self._frames, self._nbytes)]

    def _send(self, sample: _Sample, place: int, payload: Payload) -> None:
        if payload.data.nbytes > self._raw.shape[1]:
            self._grow(payload.data.nbytes)
        sample.key = payload.data.nbytes, payload.layout
        sample.place = place
        self._serials[place] = sample.serial
        target = self._raw.data_ptr() + place * self._raw.shape[1]
        source = self._pool.address(payload.data)
        if source is None:
            sample.ticket = self._uploads.send(payload.data, target, LARGE)
        else:
            sample.ticket = self._uploads.send_from(source, payload.data, target, LARGE)

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
                return self._raw.data_ptr() + sample.place * self._raw.shape[1]
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
        self._raw = allocate(self.name, "samples", self._places, slot_bytes, self._device)
        self._raw[:, : before.shape[1]] = before
        torch.cuda.current_stream(self._device).synchronize()
        self._uploads.reserve(3 * slot_bytes)
        self._pool.reserve(buffer_for(slot_bytes))

    def _make_tensors(self) -> None:
        shape, dtype = self.format.shape, self.format.dtype
        nbytes = math.prod(shape) * dtype.itemsize
        block = allocate(self.name, "frames", self._frames, max(-(-nbytes // 16) * 16, 16), self._device)
        self.tensors = [row[:nbytes].view(dtype).view(1, *shape) for row in block]
        self._addresses = [row.data_ptr() for row in block]
        self._nbytes = nbytes
        self._shown = 0
