"""Bytes of images for the tests."""

import torch

from robocache_ros.ops.image.formats import FORMATS


def image_bytes(encoding, width, height, padding, seed=0):
    fmt = FORMATS[encoding]
    step = width * fmt.pixel_bytes + padding
    rows = fmt.rows(height)
    data = torch.randint(0, 256, (step * rows,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return data, {"encoding": encoding, "width": width, "height": height, "step": step}


def same_bits(one, other):
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
