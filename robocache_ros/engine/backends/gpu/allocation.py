"""Allocates GPU memory for a purpose of a stream, or raises an error that names both."""

from __future__ import annotations

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError


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
