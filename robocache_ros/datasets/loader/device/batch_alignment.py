"""Aligns the streams of a whole batch, on the device where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from robocache_ros import ops
from robocache_ros.datasets.episode_source import modality_of
from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.device.raw_samples import RawLayout, RawStream, key_of
from robocache_ros.ops.resample.selection import HELD
from robocache_ros.units import NS_PER_MS

FOREVER = torch.iinfo(torch.int64).max
PER_TICK = frozenset({"tick_ns", "is_pad", "fused", "proprio", "vision", "valid", "age_ms"})
KEPT = ("measured", "success", "tick_ns", "is_pad", "action_is_pad", "length", "index")
Raw = dict[str, Tensor]


class _Stream(NamedTuple):
    """A stream at T ticks of each of B samples."""

    values: Tensor  # (B, T, D) float32, or images (B, T, H, W, 3) uint8
    valid: Tensor  # (B, T) uint8
    age_ms: Tensor  # (B, T) float32


def align_batch(batch: Batch, layout: RawLayout) -> None:
    """Replace the streams of a batch by what `Unaligned.aligned` gives, with the same bits, by one call of `ops.fuse`.

    Actions with ticks of their own take another one. Each image of the block was sent once, and is gathered here.
    """
    raw, streams = batch.tensors, layout.streams
    vectors = [index for index, stream in enumerate(streams) if stream.width]
    of_role = {role: [i for i in vectors if streams[i].role == role] for role in ("observation", "action", "reward")}
    fused = [index for index in vectors if streams[index].role != "reward"]
    values, aligned = _fused(raw, streams, [*fused, *of_role["reward"]], raw["tick_ns"])
    chunk = aligned
    if layout.own_ticks:
        _, chunk = _fused(raw, streams, [*of_role["action"], *of_role["reward"]], raw["action_tick_ns"])
    found: Raw = {}
    for key, role, parts in (("proprio", "observation", aligned), ("actions", "action", chunk)):
        if of_role[role]:
            found[key] = torch.cat([parts[index].values for index in of_role[role]], dim=2)
    if of_role["reward"]:
        found["rewards"] = chunk[of_role["reward"][0]].values[:, :, 0].contiguous()
    pictures = {}
    for index, stream in enumerate(streams):
        if not stream.width:
            images = _gathered(raw[key_of(index, "images")], raw[key_of(index, "chosen")])
            aligned[index] = _Stream(images, raw[key_of(index, "valid")], raw[key_of(index, "age_ms")])
            pictures[stream.name] = images
    cameras = {name: images for name, images in pictures.items() if modality_of(name) == "vision"}
    if len({images.shape for images in cameras.values()}) == 1:
        found["vision"] = torch.stack(list(cameras.values()), dim=2)
        pictures = {name: images for name, images in pictures.items() if name not in cameras}
    found.update(pictures)
    found["fused"] = values[:, :, : sum(streams[index].width for index in fused)].contiguous()
    in_order = [aligned[index] for index in range(len(streams))]
    found["valid"] = torch.stack([stream.valid for stream in in_order], dim=2)
    found["age_ms"] = torch.stack([stream.age_ms for stream in in_order], dim=2)
    batch.tensors = {**found, **{key: raw[key] for key in KEPT if key in raw}}
    per_tick = PER_TICK | pictures.keys() | (set() if layout.own_ticks else {"actions", "rewards"})
    batch.per_tick = per_tick & batch.tensors.keys()


def _fused(
    raw: Raw, streams: Sequence[RawStream], order: Sequence[int], ticks: Tensor
) -> tuple[Tensor, dict[int, _Stream]]:
    """Align streams, by their index; also return their columns side by side, (B, T, D)."""
    if not order:
        return torch.zeros((*ticks.shape, 0), device=ticks.device), {}
    inputs = [
        ops.Stream(
            raw[key_of(index, "values")],
            raw[key_of(index, "stamp_ns")],
            streams[index].method,
            raw[key_of(index, "count")],
            streams[index].max_gap_ns,
            streams[index].max_age_ns,
        )
        for index in order
    ]
    fused = ops.fuse(inputs, ticks)
    valid, age = fused.valid, fused.age
    for place, index in enumerate(order):
        if streams[index].marked:
            _of_export(raw, index, ticks, valid[:, :, place], age[:, :, place])
    # As `engine.frames.age_ms`: divided in float64 and rounded once.
    age_ms = age.double().div_(NS_PER_MS).float()
    found, column = {}, 0
    for place, index in enumerate(order):
        width = streams[index].width
        columns = fused.values[:, :, column : column + width]
        found[index] = _Stream(columns, valid[:, :, place], age_ms[:, :, place])
        column += width
    return fused.values, found


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
