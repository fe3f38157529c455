"""Which samples each target is made of, for batches and on any device: `kernels/pick.cuh` in torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from robocache_ros.ops.arithmetic import BLENDED
from robocache_ros.ops.times import NEVER


class Picks(NamedTuple):
    """For each target its rows; all tensors are (B, T)."""

    lower: Tensor  # int64 row of the sample taken or blended from, -1 for none
    upper: Tensor  # int64 row of the sample blended towards; `lower` where nothing is blended
    weight: Tensor  # float32 share of `upper`; 0 where nothing is blended
    valid: Tensor  # uint8: 0 none, 1 aligned, 2 held past its neighbour
    age: Tensor  # int64 ns, target less stamp of `lower`; 0 where there is none


def pick(times: Tensor, targets: Tensor, lengths: Tensor | None, method: str, max_gap: int, max_age: int) -> Picks:
    """Choose rows for each target.

    The order of the samples does not matter: a target's neighbours are the latest sample at or before it and the
    earliest after it, and of samples with one stamp the first counts. NEVER marks a sample or a target not there.

    Args:
        times: (B, S) int64 ns.
        targets: (B, T) int64 ns.
        lengths: (B,) int64, how many samples of each row count; None is all. Kept within [0, S].
        method: one of the five.
        max_gap: ns between the neighbours above which nothing is blended.
        max_age: ns from target to sample above which none is held or nearest.
    """
    size = times.shape[1]
    counts = torch.full_like(times[:, :1], size) if lengths is None else lengths.clamp(0, size)[:, None]
    if size == 0:
        none = torch.full_like(targets, -1)
        zero = torch.zeros_like(targets)
        return Picks(none, none, zero.float(), zero.byte(), zero)
    absent = torch.arange(size, device=times.device) >= counts
    ordered, order = times.masked_fill(absent, torch.iinfo(torch.int64).max).sort(dim=1, stable=True)
    above = torch.searchsorted(ordered, targets, right=True).minimum(counts)
    has_upper = (above < counts) & (targets != NEVER)
    after = ordered.gather(1, above.clamp(max=size - 1))
    last = (above - 1).clamp(min=0)
    before = ordered.gather(1, last)
    has_lower = (above > 0) & (before != NEVER)
    first = torch.searchsorted(ordered, before)  # of those with the stamp of the last one at or before the target
    lower, upper = order.gather(1, first), order.gather(1, above.clamp(max=size - 1))

    age = targets - before
    weight = torch.zeros_like(age, dtype=torch.float32)
    if method == "nearest":
        ahead = after - targets
        earlier = has_lower & (~has_upper | (age <= ahead))
        distance = torch.where(earlier, age, ahead)
        taken = (has_lower | has_upper) & (distance <= max_age)
        row = torch.where(earlier, lower, upper)
        return _whole(row, weight, taken, taken.byte(), torch.where(earlier, age, -ahead))
    held = has_lower & (age <= max_age)
    if method not in BLENDED:
        return _whole(lower, weight, held, held.byte(), age)
    exact = has_lower & (age == 0)
    gap = after - before
    between = has_lower & has_upper & ~exact & (gap <= max_gap)
    share = (age.double() / gap.double()).float()
    valid = torch.where(exact | between, 1, torch.where(held, 2, 0)).byte()
    whole = _whole(lower, weight, valid > 0, valid, age)
    return whole._replace(upper=torch.where(between, upper, whole.upper), weight=torch.where(between, share, weight))


def _whole(row: Tensor, weight: Tensor, taken: Tensor, valid: Tensor, age: Tensor) -> Picks:
    row = row.masked_fill(~taken, -1)
    return Picks(row, row, weight, valid, age.masked_fill(~taken, 0))
