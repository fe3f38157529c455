"""Decodes the jpeg files of a batch on its GPU."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from robocache_ros.datasets.episode_source import DatasetError
from robocache_ros.datasets.image_decoding import decode_image
from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.device.raw_layout import key_of
from robocache_ros.datasets.loader.device.raw_samples import RGB
from robocache_ros.datasets.loader.packing import Description, view
from robocache_ros.errors import printable
from robocache_ros.ops.image.nvjpeg_batch import JpegBatchDecoder


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
