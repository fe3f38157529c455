"""A batch on its device, from its block of memory to what the training loop receives."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from robocache_ros import normalize_image
from robocache_ros.datasets.loader.packing import Description, is_file, tensors

RAGGED = ("pad", "concat")
Skipped = tuple[tuple[int, str], ...]  # samples that cannot be read, and why


@dataclass
class Batch:
    """B samples of up to T ticks."""

    tensors: dict[str, Tensor]  # (B, ...), those of `per_tick` (B, T, ...)
    samples: tuple[int, ...]  # (B,) their numbers
    lengths: tuple[int, ...]  # (B,) ticks of each
    per_tick: frozenset[str]
    texts: dict[str, tuple[str, ...]]
    # The columns of each stream in a tensor, in the order of `valid`: 0 where it has none.
    widths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    mask: Tensor | None = None  # (B, T) bool, what `padding` returns if it is known already

    @classmethod
    def of_block(cls, description: Description, block: Tensor) -> Batch:
        """Return the batch of a block, (N,) uint8 on the batch's device, whose memory it shares; without files."""
        found = tensors([entry for entry in description.entries if not is_file(entry.key)], block)
        return cls(found, description.samples, description.lengths, description.per_tick, description.texts)

    def drop(self, rows: Collection[int]) -> None:
        """Leave samples out, by their places in the batch."""
        if not rows:
            return
        kept = [row for row in range(len(self.samples)) if row not in rows]
        self.samples, self.lengths = (tuple(each[row] for row in kept) for each in (self.samples, self.lengths))
        self.texts = {key: tuple(words[row] for row in kept) for key, words in self.texts.items()}
        self.mask = None
        ticks, index = max(self.lengths, default=0), torch.tensor(kept, dtype=torch.int64)
        for key, tensor in self.tensors.items():
            left = tensor.index_select(0, index.to(tensor.device))
            self.tensors[key] = left[:, :ticks].contiguous() if key in self.per_tick else left

    def columns_valid(self, key: str) -> Tensor | None:
        """(B, T, D) bool, whether each value of a tensor is valid: its stream, and not padding; None if all are.

        Where the columns of the streams are unknown, all values of the sample's ticks count as valid.
        """
        if key not in self.per_tick:
            return None
        values = self.tensors[key]
        widths = self.widths.get(key)
        valid = self.tensors.get("valid")
        if widths and valid is not None and valid.shape[1] == values.shape[1] and sum(widths) == values.shape[-1]:
            repeats = _on_device(widths, values.device)
            return torch.repeat_interleave(valid > 0, repeats, dim=2, output_size=sum(widths))
        there = ~self.padding()
        return there.view(*there.shape, *(1,) * (values.ndim - 2)).expand_as(values)

    def padding(self) -> Tensor:
        """(B, T) bool, whether a tick is past the end of its sample."""
        if self.mask is not None:
            return self.mask
        lengths = self.tensors["length"]
        return torch.arange(max(self.lengths), device=lengths.device)[None, :] >= lengths[:, None]

    def output(self, ragged: str) -> dict[str, Any]:
        """Return what the training loop receives.

        Args:
            ragged: pad: (B, T, ...) with `padding`, (B, T) bool; concat: (sum of lengths, ...) with `offsets`, (B + 1,)
                int64.
        """
        found: dict[str, Any] = dict(self.tensors)
        if ragged == "concat":
            # Their number is known on the host, so that nothing waits for the device.
            rows = torch.cat([torch.arange(n) + i * max(self.lengths) for i, n in enumerate(self.lengths)])
            rows = rows.to(found["length"].device)
            for key in self.per_tick:
                found[key] = found[key].flatten(0, 1).index_select(0, rows)
            found["offsets"] = torch.nn.functional.pad(found["length"].cumsum(0), (1, 0))
        else:
            found["padding"] = self.padding()
        return {**found, **{key: list(words) for key, words in self.texts.items()}}


@cache
def _on_device(widths: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(widths, device=device)  # once: a copy from pageable memory waits for the device


def convert_images(batch: Batch, dtype: torch.dtype, normalize: Any) -> None:
    """Convert the images of a batch, (..., H, W, 3) uint8, to (..., 3, H, W) of `dtype`, with `normalize_image`."""
    for key in [key for key in batch.tensors if key.partition("/")[0] == "vision"]:
        batch.tensors[key] = normalize_image(batch.tensors[key].movedim(-1, -3).contiguous(), normalize, dtype)
