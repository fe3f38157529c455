"""Batches ahead of their use: read by workers, copied to a device and aligned there."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, count, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robocache_ros import ops
from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.order import Request
from robocache_ros.datasets.loader.packing import ROWS, Description, RawLayout, RawStream, key_of, view
from robocache_ros.datasets.loader.raw_samples import RGB
from robocache_ros.datasets.loader.reading import BatchReader
from robocache_ros.datasets.loader.worker_pool import Slot, WorkerPool
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.images import decode_image
from robocache_ros.formats.read import DatasetError, modality_of
from robocache_ros.ops.image.nvjpeg import JpegBatchDecoder
from robocache_ros.ops.resample.inputs import ABSENT_NS
from robocache_ros.ops.resample.selection import HELD
from robocache_ros.units import NS_PER_MS

FOREVER = torch.iinfo(torch.int64).max
PER_TICK = frozenset({"tick_ns", "is_pad", "fused", "proprio", "vision", "valid", "age_ms"})
PASSED_THROUGH = ("measured", "success", "tick_ns", "is_pad", "action_is_pad", "length", "index")
Raw = dict[str, Tensor]


class _Aligned(NamedTuple):
    """N streams at T ticks of each of B samples."""

    order: Sequence[int]  # (N,) the index of each in the layout
    values: Tensor  # (B, T, sum of D) float32
    valid: Tensor  # (B, T, N) uint8
    age_ns: Tensor  # (B, T, N) int64
    spans: dict[int, slice]  # the columns of each

    def columns(self, wanted: Sequence[int], *, shared: bool) -> Tensor:
        """(B, T, columns of these streams) float32, in memory of its own if `values` are used elsewhere: `shared`."""
        if not shared and list(wanted) == list(self.order):
            return self.values
        spans = [self.spans[index] for index in wanted]
        whole = slice(spans[0].start, spans[-1].stop)
        if whole.stop - whole.start == sum(span.stop - span.start for span in spans):
            return self.values[:, :, whole].clone(memory_format=torch.contiguous_format)
        return torch.cat([self.values[:, :, span] for span in spans], dim=2)


def align_batch(batch: Batch, layout: RawLayout) -> None:
    """Replace the streams of a batch by the samples of a `TimelineDataset`, with the same bits, by one `ops.fuse`.

    Actions with ticks of their own take another one. Each image of the block was sent once, and is gathered here.
    """
    raw, streams = batch.tensors, layout.streams
    vectors = [index for index, stream in enumerate(streams) if stream.width]
    for key in [key_of(index, "values") for index in vectors]:
        if (rows := raw.get(key + ROWS)) is not None:  # they are joined, without padding
            raw[key] = raw[key].index_select(0, rows.flatten()).view(*rows.shape, -1)
    of_role = {role: [i for i in vectors if streams[i].role == role] for role in ("observation", "action", "reward")}
    fused = [index for index in vectors if streams[index].role != "reward"]
    aligned = _fused(raw, streams, [*fused, *of_role["reward"]], raw["tick_ns"])
    chunk = aligned
    if layout.own_ticks:
        chunk = _fused(raw, streams, [*of_role["action"], *of_role["reward"]], raw["action_tick_ns"])
    found: Raw = {}
    for key, role, parts in (("proprio", "observation", aligned), ("actions", "action", chunk)):
        if of_role[role]:
            found[key] = parts.columns(of_role[role], shared=parts is aligned)
    if of_role["reward"]:
        found["rewards"] = chunk.columns(of_role["reward"][:1], shared=True)[:, :, 0].contiguous()
    pictures = {
        stream.name: _gathered(raw[key_of(index, "images")], raw[key_of(index, "chosen")])
        for index, stream in enumerate(streams)
        if not stream.width
    }
    found["valid"], found["age_ms"] = _marks(raw, aligned, streams)
    cameras = {name: images for name, images in pictures.items() if modality_of(name) == "vision"}
    if len({images.shape for images in cameras.values()}) == 1:
        found["vision"] = torch.stack(list(cameras.values()), dim=2)
        pictures = {name: images for name, images in pictures.items() if name not in cameras}
    found.update(pictures)
    columns = sum(streams[index].width for index in fused)
    found["fused"] = aligned.values[:, :, :columns].contiguous() if of_role["reward"] else aligned.values
    batch.tensors = {**found, **{key: raw[key] for key in PASSED_THROUGH if key in raw}}
    per_tick = PER_TICK | pictures.keys() | (set() if layout.own_ticks else {"actions", "rewards"})
    ticks = raw["tick_ns"].shape[1]
    batch.per_tick = frozenset(key for key in per_tick & batch.tensors.keys() if batch.tensors[key].shape[1] == ticks)
    batch.mask = raw["tick_ns"] == ABSENT_NS


def _fused(raw: Raw, streams: Sequence[RawStream], order: Sequence[int], ticks: Tensor) -> _Aligned:
    """Align streams, by their indexes in the layout."""
    if not order:
        none = torch.zeros((*ticks.shape, 0), device=ticks.device)
        return _Aligned(order, none, none.byte(), none.long(), {})
    inputs, spans, column = [], {}, 0
    for index in order:
        _, _, method, max_gap, max_age, width, *_ = streams[index]
        values, stamps, count = (raw[key_of(index, part)] for part in ("values", "stamp_ns", "count"))
        inputs.append(ops.Stream(values, stamps, method, count, max_gap, max_age))
        spans[index] = slice(column, column + width)
        column += width
    values, valid, age = ops.fuse(inputs, ticks)
    return _Aligned(order, values, valid, age, spans)


def _marks(raw: Raw, aligned: _Aligned, streams: Sequence[RawStream]) -> tuple[Tensor, Tensor]:
    """`valid` and `age_ms` of all streams, in their order."""
    place = {index: number for number, index in enumerate(aligned.order)}
    for index, at in place.items():
        if streams[index].marked:
            _of_export(raw, index, raw["tick_ns"], aligned.valid[:, :, at], aligned.age_ns[:, :, at])
    # As `engine.frames.age_ms`: divided in float64 and rounded once.
    age_ms = aligned.age_ns.double().div_(NS_PER_MS).float()
    if list(aligned.order) == list(range(len(streams))):
        return aligned.valid, age_ms
    valid, age = (
        torch.stack(
            [of_all[:, :, place[i]] if i in place else raw[key_of(i, part)] for i in range(len(streams))],
            dim=2,
        )
        for part, of_all in (("valid", aligned.valid), ("age_ms", age_ms))
    )
    return valid, age


def _of_export(raw: Raw, index: int, ticks: Tensor, valid: Tensor, age_ns: Tensor) -> None:
    """Add the state and the age of samples that an export has aligned; in place."""
    stamps, count = raw[key_of(index, "stamp_ns")], raw[key_of(index, "count")]
    absent = torch.arange(stamps.shape[1], device=stamps.device) >= count[:, None]
    rows = torch.searchsorted(stamps.masked_fill(absent, FOREVER), ticks - age_ns).clamp_(max=stamps.shape[1] - 1)
    found = valid > 0
    held = found & (raw[key_of(index, "valid")].gather(1, rows) == HELD)
    valid.masked_fill_(held, HELD)
    age_ns += raw[key_of(index, "age")].gather(1, rows).masked_fill_(~found, 0)


def _gathered(images: Tensor, chosen: Tensor) -> Tensor:
    """(B, T, ...) images at ticks, of (B, N, ...) images: `chosen` (B, T) counts them from 1 on; 0 gives zeros."""
    batches, count = images.shape[:2]
    first = torch.arange(batches, device=images.device)[:, None] * count
    rows = (first + chosen - 1).clamp_(min=0)
    found = images.flatten(0, 1).index_select(0, rows.flatten()).view(*chosen.shape, *images.shape[2:])
    return found.masked_fill_((chosen == 0).view(*chosen.shape, *(1,) * (images.ndim - 2)), 0)


def decode_files(batch: Batch, description: Description, block: Tensor) -> dict[int, str]:
    """Add the images (B, N, H, W, 3) of the files of a batch.

    Args:
        batch: on its device.
        description: of the block.
        block: (nbytes,) uint8 in host memory, which stays as it is until the current stream has done this.

    Returns:
        why a sample, by its place in the batch, has an image that cannot be read.
    """
    assert description.layout is not None
    entries, host = {entry.key: entry for entry in description.entries}, block.numpy()
    device = batch.tensors["tick_ns"].device
    unreadable: dict[int, str] = {}
    for index, stream in enumerate(description.layout.streams):
        if stream.size is None:
            continue
        files, ends = entries[key_of(index, "files")], view(entries[key_of(index, "ends")], host)
        begins = np.concatenate([np.zeros((len(ends), 1), np.int64), ends[:, :-1]], axis=1)
        rows, places = np.nonzero(ends)  # a file has bytes, the padding has none
        starts, stops = (each[rows, places] + rows * files.shape[1] for each in (begins, ends))
        images = torch.empty((ends.size, *stream.size, RGB), dtype=torch.uint8, device=device)
        base, wanted = block.data_ptr() + files.offset, rows * ends.shape[1] + places
        for number in _decoder(device).decode(base + starts, stops - starts, images, wanted):
            data = host[files.offset + starts[number] : files.offset + stops[number]]
            try:
                pixels = decode_image(data.tobytes(), printable(stream.name, 40))
            except DatasetError as error:
                unreadable.setdefault(int(rows[number]), str(error))
                continue
            images[wanted[number]] = torch.tensor(pixels).to(device)
        batch.tensors[key_of(index, "images")] = images.view(*ends.shape, *images.shape[1:])
    return unreadable


@cache
def _decoder(device: torch.device) -> JpegBatchDecoder:
    return JpegBatchDecoder(device)


class _LocalReader:
    """Reads batches in this process, when their results are wanted; has the methods of a `WorkerPool`."""

    replaced = 0
    pids: tuple[int, ...] = ()

    def __init__(self, reader: BatchReader, slots: Sequence[Slot]) -> None:
        self._reader = reader
        self._free = deque(slots)
        self._jobs: dict[int, tuple[Sequence[Sequence[int]], int]] = {}
        self.release = self._free.append

    def submit(self, number: int, samples: Sequence[Sequence[int]], epoch: int) -> None:
        self._jobs[number] = samples, epoch

    def result(self, number: int) -> tuple[Description, Slot]:
        loaded = self._reader.load(*self._jobs.pop(number))
        slot = self._free.popleft()
        try:
            if loaded.description.nbytes > slot.nbytes:
                slot.grow(loaded.description.nbytes)
            return self._reader.write(loaded, slot.memory.numpy()), slot
        except BaseException:
            self.release(slot)
            raise

    def ready(self, number: int) -> bool:
        return False

    def discard(self, number: int) -> None:
        del self._jobs[number]

    @property
    def has_slot(self) -> bool:
        return bool(self._free)

    def close(self) -> None: ...


COPIES = 2  # batches that are on the device, or on their way, before the training loop asks for them
MAX_BORROWED_BLOCKS = 2  # on the CPU: blocks that batches use as they are, until their tensors are gone


class OnDevice(NamedTuple):
    """A batch whose copy has been started."""

    description: Description
    batch: Batch | None  # None if all of its samples were skipped
    copied: Any  # torch.cuda.Event; None on the CPU


class Prefetcher:
    """Reads batches ahead of their use.

    Args:
        reader: reads a batch, in the workers.
        workers: processes; 0: this one.
        prefetch: batches that are read ahead.
        device: of the batches.
        max_batch_bytes: limit of a batch.

    Attributes:
        slots: the blocks of host memory.
        pool: the workers, or what reads in this process.
    """

    def __init__(
        self, reader: BatchReader, workers: int, prefetch: int, device: torch.device, max_batch_bytes: int
    ) -> None:
        self._cuda, self._skip = device.type == "cuda", reader.skip
        self._device, self._workers, self._prefetch = device, workers, prefetch if workers else 1
        ahead = self._prefetch + (COPIES if self._cuda else MAX_BORROWED_BLOCKS)
        self.slots = [Slot(i, pinned=self._cuda, limit=max_batch_bytes) for i in range(ahead)]
        self.pool = WorkerPool(reader, workers, self.slots) if workers else _LocalReader(reader, self.slots)
        self._borrowed = 0
        self._numbers = count()
        self._reading: deque[tuple[int, Request]] = deque()  # of the last call of `batches`, and after it
        self._copying: deque[tuple[Any, Slot]] = deque()  # slots that the device may still read
        self._stream = torch.cuda.Stream(device) if self._cuda else None  # type: ignore[no-untyped-call]

    def batches(
        self,
        requests: Iterator[Request],
        wanted: int,
        widths: Mapping[str, tuple[int, ...]],
        finish: Callable[[Batch], Batch],
    ) -> Iterator[OnDevice]:
        """Yield the first batches of a sequence in their order. Workers read ahead what comes after them.

        A call continues with what is being read if that is what its requests begin with, and discards it otherwise.

        Args:
            requests: of the batches, and after them those of a next call.
            wanted: how many batches.
            widths: the columns of each stream, see `Batch`.
            finish: what is computed on the device, on the stream of the copy.

        Errors:
            RoboCacheError: a batch cannot be read.
        """
        # Without workers, a batch is read when it is asked for, and nothing is known of the next call.
        requests = self._following(requests if self._workers else islice(requests, wanted))
        ready: deque[OnDevice] = deque()
        while True:
            while len(self._reading) < self._prefetch and (request := next(requests, None)) is not None:
                self._submit(request)
            # Waits for a worker only if there is nothing to hand out.
            while wanted and self._reading:
                copies = self._cuda and len(ready) < COPIES and self.pool.ready(self._reading[0][0])
                if ready and not copies:
                    break
                wanted -= 1
                ready.append(self._on_device(self._reading.popleft()[0], widths, finish))
            if not ready:
                return
            yield self._handed_out(ready.popleft())

    def _following(self, requests: Iterator[Request]) -> Iterator[Request]:
        """Discard what is being read if it is not the first of some requests, and return those after it."""
        first = list(islice(requests, len(self._reading)))
        while [request for _, request in self._reading] != first[: len(self._reading)]:
            self.pool.discard(self._reading.popleft()[0])
        return chain(first[len(self._reading) :], requests)

    def _submit(self, request: Request) -> None:
        while self._copying and (self._copying[0][0].query() or not self.pool.has_slot):
            event, slot = self._copying.popleft()
            event.synchronize()
            self.pool.release(slot)
        number = next(self._numbers)
        self.pool.submit(number, request.samples, request.epoch)
        self._reading.append((number, request))

    def _on_device(
        self, number: int, widths: Mapping[str, tuple[int, ...]], finish: Callable[[Batch], Batch]
    ) -> OnDevice:
        description, slot = self.pool.result(number)
        if not description.samples:
            self.pool.release(slot)
            return OnDevice(description, None, None)
        host = slot.memory[: description.nbytes]
        if self._stream is None:
            borrowed = description.layout is None and self._borrowed < MAX_BORROWED_BLOCKS
            block = self._borrow(slot, description.nbytes) if borrowed else host[: description.copied].clone()
            item = self._aligned(description, host, block, widths)
            if not borrowed:
                self.pool.release(slot)
            return item if item.batch is None else item._replace(batch=finish(item.batch))
        with torch.cuda.stream(self._stream):
            block = host[: description.copied].to(self._device, non_blocking=True)
            item = self._aligned(description, host, block, widths)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
            self._copying.append((copied, slot))
            batch = item.batch and finish(item.batch)
            finished = torch.cuda.Event()  # type: ignore[no-untyped-call]
            finished.record(self._stream)
        return OnDevice(item.description, batch, finished)

    def _borrow(self, slot: Slot, nbytes: int) -> Tensor:
        """Return the first bytes of a slot, which is free again when the last tensor that shares them is gone."""
        view = slot.memory.numpy()[:nbytes]
        self._borrowed += 1
        weakref.finalize(view, self._returned, slot).atexit = False
        return torch.from_numpy(view)

    def _returned(self, slot: Slot) -> None:
        self._borrowed -= 1
        self.pool.release(slot)

    def _aligned(
        self, description: Description, host: Tensor, block: Tensor, widths: Mapping[str, tuple[int, ...]]
    ) -> OnDevice:
        """Return the batch of a block; aligned here, and its images decoded, if its workers have not done so."""
        batch = Batch.of_block(description, block)
        if description.layout is not None:
            unreadable = decode_files(batch, description, host)
            align_batch(batch, description.layout)
            for row, reason in unreadable.items():
                if not self._skip:
                    raise RoboCacheError(f"sample {batch.samples[row]}: {reason}")
            skipped = tuple((batch.samples[row], reason) for row, reason in unreadable.items())
            description = replace(description, skipped=(*description.skipped, *skipped))
            batch.drop(unreadable.keys())
        batch.widths = {key: each for key, each in widths.items() if key in batch.tensors}
        return OnDevice(description, batch if batch.samples else None, None)

    def _handed_out(self, item: OnDevice) -> OnDevice:
        """Order the training loop's stream after the copy, and keep the memory until that stream is done with it."""
        if item.batch is not None and item.copied is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(item.copied)
            tensor: Tensor
            for tensor in item.batch.tensors.values():
                tensor.record_stream(current)
        return item

    def close(self) -> None:
        """End the workers and give the memory back."""
        self.pool.close()
        self._reading.clear()
        for event, _ in self._copying:
            event.synchronize()
        self._copying.clear()
        for slot in self.slots:
            slot.close()
