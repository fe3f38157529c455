"""Aligns the streams of a whole batch on the device where they are, and decodes its jpeg files there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from robocache_ros import ops
from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.packing import ROWS, Description, RawLayout, RawStream, key_of, view
from robocache_ros.datasets.loader.raw_samples import RGB
from robocache_ros.errors import printable
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
    batch.per_tick = per_tick & batch.tensors.keys()
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
