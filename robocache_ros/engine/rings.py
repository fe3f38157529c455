"""The GPU's memory of one stream: its samples as they came, by slot, and what the last ticks made of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.decode import decode_compressed
from robocache_ros.decode.payloads import ImagePayload
from robocache_ros.engine.backend import MemoryRow, Options
from robocache_ros.engine.media import (
    Payload,
    depth_arguments,
    form_of,
    image_arguments,
    layout_of,
    voxel_arguments,
)
from robocache_ros.engine.rooms import Rooms, room_for
from robocache_ros.engine.uplink import ALIGNMENT, LARGE, SMALL, Uplink
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda.jpeg import decode_jpeg
from robocache_ros.ops.cuda.memory import pinned
from robocache_ros.ops.cuda.prepare import MODES, Prepared, prepare_cloud, prepare_depth, prepare_image
from robocache_ros.ops.cuda.tick import KEEP, MAKE, ZERO
from robocache_ros.ops.image_cuda import RESIZE
from robocache_ros.ops.image_formats import PACKED
from robocache_ros.spec import StreamSpec

log = logging.getLogger(__name__)

LAYOUTS = 32  # of samples that are remembered: clouds may differ in their points each time
PINNED_BLOCKS = 5  # for messages: two for those to come, one that is decoded, two on their way to the GPU
DECODED_SLOTS = 2  # of images decompressed for a tick: one that is read, one on its way


def allocate(stream: str, purpose: str, slots: int, slot_bytes: int, device: torch.device) -> Tensor:
    """(slots, slot_bytes) uint8 of zeros on the GPU, there for every stream; RoboCacheError where there is no room."""
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


def likely_variant(stream: StreamSpec) -> tuple[int, ...]:
    """What the kernels of a stream will be compiled for, if its images are not of a rare encoding."""
    if stream.voxels:
        cells, is_depth = math.prod(stream.voxels.shape), int(bool(stream.camera_info))
        return MODES.index(stream.voxels.reduce), len(stream.voxels.features), cells, is_depth
    assert stream.image
    return PACKED, RESIZE[stream.image.resize], 1


class VectorRing:
    """Rows of float32 values on the GPU.

    Args:
        stream: a vector stream.
        slots: samples there is room for.
        device: where.
        uplink: the way there.
    """

    def __init__(self, stream: StreamSpec, slots: int, device: torch.device, uplink: Uplink) -> None:
        self.name = stream.name
        self._uplink = uplink
        self._bytes = 4 * stream.width
        self.rows = allocate(self.name, "samples", slots, self._bytes, device).view(torch.float32)
        self._base = self.rows.data_ptr()
        self.tickets = [-1] * slots

    def put(self, slot: int, value: NDArray[np.float32]) -> None:
        """Send (D,) float32 values to their slot."""
        data = np.ascontiguousarray(value, np.float32).view(np.uint8)
        self.tickets[slot] = self._uplink.send(data, self._base + slot * self._bytes, SMALL)

    def memory(self) -> list[MemoryRow]:
        """What is held."""
        return [MemoryRow(self.name, "samples", "gpu", len(self.rows), self._bytes)]


class _Sample:
    """What is known of the image or cloud in a slot."""

    __slots__ = ("key", "packed", "place", "prepared", "serial", "ticket")

    def __init__(self, serial: int) -> None:
        self.serial = serial  # tells it from all others of the stream
        self.packed: ImagePayload | None = None  # a compressed image, on the host
        self.key: tuple[Any, ...] = ()  # the layout of its raw bytes
        self.place = -1  # where they lie on the GPU
        self.ticket = -1  # of their copy
        self.prepared: Prepared | None = None  # once it was checked


class Part(NamedTuple):
    """A media stream's part of a tick, as Plan takes it."""

    action: int
    out: int  # addresses
    before: int
    nbytes: int
    data: int
    prepared: Prepared | None  # None while no sample has shown what to launch
    ticket: int
    tensor: Tensor  # (1, ...) what is at `out`


class MediaRing:
    """Raw images or clouds on the GPU, and the tensors of the last ticks.

    Compressed images stay on the host until a tick uses one; it is decoded there, by the CPU engine's decoder, unless
    the options ask for the GPU's.

    Args:
        stream: an image or cloud stream.
        slots: samples there is room for.
        device: where.
        uplink: the way there.
        options: how its tensors are made.
        frames: ticks whose tensors are kept.
    """

    def __init__(
        self, stream: StreamSpec, slots: int, device: torch.device, uplink: Uplink, options: Options, frames: int
    ) -> None:
        self.name = stream.name
        self.form = form_of(stream, options.normalized)
        self.reallocations = 0
        self._stream = stream
        self._device = device
        self._uplink = uplink
        self._frames = frames
        self._normalized = options.normalized
        self._nvjpeg = options.jpeg == "gpu"
        self._pixels: tuple[int, Tensor] | None = None  # what nvJPEG made, and of which sample
        self._compressed = stream.kind == "image" and stream.type.endswith("/CompressedImage")
        self._places = DECODED_SLOTS if self._compressed else slots
        self._held = [0] * self._places  # serial of the sample whose bytes lie in each place
        self._raw = torch.empty((self._places, 0), dtype=torch.uint8, device=device)
        self._samples: dict[int, _Sample] = {}
        self._serial = 0
        self._known: dict[tuple[Any, ...], Prepared] = {}  # by layout
        self._latest: Prepared | None = None
        self._shown = self._turn = 0  # the sample that the newest tensor shows; 0 none
        self._sums: Tensor | None = None
        if stream.voxels and stream.voxels.features:
            cells = math.prod(stream.voxels.shape)
            sums = allocate(self.name, "sums", len(stream.voxels.features) + 1, 8 * cells, device)
            self._sums = sums.view(torch.int64)
        # A compressed image is decoded on the host, and a depth image is joined with its colours there.
        self.from_host = stream.type.endswith("/CompressedImage") or bool(stream.color)
        self._rooms = Rooms(lambda nbytes: pinned(nbytes).numpy(), 0 if self.from_host else PINNED_BLOCKS)
        self._make_tensors()
        if stream.name in options.payload_bytes:
            self._make_room(options.payload_bytes[stream.name])

    def room(self, nbytes: int) -> NDArray[np.uint8]:
        """Pinned memory to put a message into, from where its payload is sent as it lies."""
        self._uplink.retire()
        return self._rooms.lend(nbytes)

    def put(self, slot: int, payload: Payload) -> None:
        """Send an image or cloud to its slot; keep a compressed image."""
        self._serial += 1
        sample = self._samples[slot] = _Sample(self._serial)
        if self._compressed:
            assert isinstance(payload, ImagePayload)
            sample.packed = payload
        else:
            self._send(sample, slot, payload)

    def drop(self, slots: Sequence[int]) -> None:
        """Forget the samples of these slots."""
        for slot in slots:
            self._samples.pop(slot, None)

    def check(self, slot: int) -> None:
        """Find out what becomes of a sample; ValueError where it is corrupt or of another form than those before."""
        sample = self._samples[slot]
        if sample.prepared:
            return
        if sample.packed:
            self._decode(sample)
        prepared = self._known.get(sample.key) or self._prepare(sample.key)
        self.form.agree(prepared.shape, prepared.dtype)
        if ((1, *prepared.shape), prepared.dtype) != (self.tensors[0].shape, self.tensors[0].dtype):
            self._make_tensors()
        sample.prepared = prepared

    def part(self, slot: int) -> Part:
        """The next tick's part, made of a slot that was checked, or of none (-1)."""
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
        """No sample is left."""
        self._samples.clear()
        self._shown = 0

    def memory(self) -> list[MemoryRow]:
        """What is held."""
        sums = [MemoryRow(self.name, "sums", "gpu", 1, self._sums.nbytes)] if self._sums is not None else []
        raw = MemoryRow(self.name, "samples", "gpu", self._places, self._raw.shape[1])
        blocks = self._rooms.nbytes
        messages = [MemoryRow(self.name, "messages", "pinned", len(blocks), max(blocks))] if blocks else []
        return [raw, *messages, *sums, MemoryRow(self.name, "frames", "gpu", self._frames, self._nbytes)]

    def _send(self, sample: _Sample, place: int, payload: Payload) -> None:
        if payload.data.nbytes > self._raw.shape[1]:
            self._make_room(payload.data.nbytes)
        sample.key = (payload.data.nbytes, *layout_of(payload))
        sample.place = place
        self._held[place] = sample.serial
        target = self._raw.data_ptr() + place * self._raw.shape[1]
        source = self._rooms.address(payload.data)
        if source is None:
            sample.ticket = self._uplink.send(payload.data, target, LARGE)
        else:
            sample.ticket = self._uplink.send_from(source, payload.data, target, LARGE)

    def _decode(self, sample: _Sample) -> None:
        packed = sample.packed
        assert packed
        if self._nvjpeg and packed.encoding == "jpeg":
            pixels = decode_jpeg(packed.data, self._device)
            height, width, channels = pixels.shape
            encoding = "rgb8" if channels == 3 else "mono8"
            sample.key = (pixels.nbytes, encoding, width, height, channels * width, False)
            self._pixels = (sample.serial, pixels)
        else:
            self._send(sample, sample.serial % DECODED_SLOTS, decode_compressed(packed))

    def _address(self, sample: _Sample) -> int:
        """Where a sample's raw bytes are, or will be once its copy is through."""
        for _ in range(2):
            if self._pixels and self._pixels[0] == sample.serial:
                return self._pixels[1].data_ptr()
            if sample.place >= 0 and self._held[sample.place] == sample.serial:
                return self._raw.data_ptr() + sample.place * self._raw.shape[1]
            self._decode(sample)  # others were decoded since: several ticks are made at once
        raise AssertionError("a decoded image lies where it was put")

    def _make_room(self, nbytes: int) -> None:
        """Make every place large enough; what lies there stays."""
        before = self._raw
        wanted = nbytes if self._stream.kind == "image" else nbytes + nbytes // 4  # clouds differ in their points
        slot_bytes = -(-wanted // ALIGNMENT) * ALIGNMENT
        if before.shape[1]:
            self.reallocations += 1
            log.warning(
                "%s: a sample of %d bytes where %d were the most: its memory is made anew", self.name, nbytes,
                before.shape[1],
            )  # fmt: skip
            torch.cuda.synchronize(self._device)
        self._raw = allocate(self.name, "samples", self._places, slot_bytes, self._device)
        self._raw[:, : before.shape[1]] = before
        torch.cuda.current_stream(self._device).synchronize()
        self._uplink.reserve(3 * slot_bytes)
        self._rooms.reserve(room_for(slot_bytes))

    def _make_tensors(self) -> None:
        shape, dtype = self.form.shape, self.form.dtype
        nbytes = math.prod(shape) * dtype.itemsize
        block = allocate(self.name, "frames", self._frames, max(-(-nbytes // 16) * 16, 16), self._device)
        self.tensors = [row[:nbytes].view(dtype).view(1, *shape) for row in block]
        self._addresses = [row.data_ptr() for row in block]
        self._nbytes = nbytes
        self._shown = 0

    def _prepare(self, key: tuple[Any, ...]) -> Prepared:
        nbytes, *layout = key
        if self._stream.kind == "image":
            prepared = prepare_image(nbytes, **image_arguments(layout, self._stream, self._normalized))
        elif self._stream.camera_info:
            prepared = prepare_depth(nbytes, sums=self._sums, **depth_arguments(layout, self._stream))
        else:
            prepared = prepare_cloud(nbytes, sums=self._sums, **voxel_arguments(layout, self._stream))
        if len(self._known) == LAYOUTS:
            self._known.clear()
        self._known[key] = prepared
        return prepared
