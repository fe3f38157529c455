"""One tick of a fusion engine on the GPU: its plan, which is uploaded, and the launches that read it.

The launches take nothing but addresses inside the plan, so a CUDA graph of them serves every tick.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.ops.arithmetic import METHODS
from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.memory import copy_async, new_event, pinned
from robocache_ros.ops.cuda.prepare import Prepared
from robocache_ros.ops.image_cuda import JOB
from robocache_ros.ops.voxel_cuda import CLOUDS

ZERO, KEEP, MAKE = 0, 1, 2  # enum Action of plan.cuh
UPLOADS = 4  # plans on their way to the GPU, or read there, before the host must wait to write another
THREADS = 128

# The structs of the kernels, natively aligned as `struct` does it.
_TARGET = "PPqii"
ROW_PLAN = struct.Struct("@PPPPii")  # row.cuh
ROW_TASK = struct.Struct("@Pqqfiii")  # row.cuh
IMAGE_TASK = struct.Struct(f"@{_TARGET}{JOB}4x")  # tick_image.cu
CLOUD_TASK = struct.Struct(f"@{_TARGET}{CLOUDS}Pqffd")  # tick_cloud.cu


class Plan:
    """What a tick is made of, in pinned memory and in the GPU's.

    Write it between `begin` and `upload`: every stream's part, each time.

    Args:
        samples: the (slots, width) float32 tensor of each vector stream.
        methods: how each of them is blended.
        images: number of image streams.
        clouds: number of cloud streams.
        device: CUDA device.
    """

    def __init__(
        self, samples: Sequence[Tensor], methods: Sequence[str], images: int, clouds: int, device: torch.device
    ) -> None:
        widths = [rows.shape[1] for rows in samples]
        self._vectors = [
            (rows.data_ptr(), width, sum(widths[:i]), METHODS.index(method))
            for i, (rows, width, method) in enumerate(zip(samples, widths, methods, strict=True))
        ]
        self._values, self._statuses = sum(widths), 2 * (len(samples) + images + clouds)
        sizes = (ROW_PLAN.size, 4 * self._statuses, len(samples) * ROW_TASK.size, images * IMAGE_TASK.size)
        starts = np.cumsum([-(-size // 16) * 16 for size in sizes]).tolist()
        self._status_at, self._vectors_at, self._images_at, self._clouds_at = starts
        self.nbytes = -(-(self._clouds_at + clouds * CLOUD_TASK.size) // 256) * 256
        self.waits = 0  # times that the host waited for an earlier tick's plan to be through
        self._pinned = pinned(UPLOADS * self.nbytes)
        self._drafts = self._pinned.numpy().reshape(UPLOADS, self.nbytes)
        self._uploaded = [new_event() for _ in range(UPLOADS)]
        self._device = torch.zeros(self.nbytes, dtype=torch.uint8, device=device)
        self._at = self._device.data_ptr()
        self._index: int = device.index
        self._turn = 0

    def begin(self) -> None:
        """Turn to the next of the drafts in pinned memory."""
        self._turn = (self._turn + 1) % UPLOADS
        if not self._uploaded[self._turn].query():
            self.waits += 1
            self._uploaded[self._turn].synchronize()
        self._draft = self._drafts[self._turn]

    def row(self, row: int, again: int, host: int, status: NDArray[np.float32]) -> None:
        """Where the fused row goes (addresses), and the (2 N,) float32 valid and age of it."""
        ROW_PLAN.pack_into(self._draft, 0, row, again, host, self._at + self._status_at, self._values, self._statuses)
        self._draft[self._status_at : self._status_at + 4 * self._statuses] = status.view(np.uint8)

    def vector(self, number: int, lower: int, upper: int, weight: float) -> None:
        """The slots that a vector stream is blended from, and the share of the upper one; lower -1 for none."""
        samples, width, column, method = self._vectors[number]
        at = self._vectors_at + number * ROW_TASK.size
        ROW_TASK.pack_into(self._draft, at, samples, lower, upper, weight, width, column, method)

    def image(self, number: int, target: tuple[int, int, int, int], data: int, prepared: Prepared) -> None:
        """An image stream's part.

        Args:
            number: of the stream.
            target: address to write, address of what is kept, bytes of each, and the action.
            data: address of the raw bytes, where they are made into the image.
            prepared: how.
        """
        job = (data, *prepared.numbers[1:-4], target[0], *prepared.numbers[-3:])
        IMAGE_TASK.pack_into(self._draft, self._images_at + number * IMAGE_TASK.size, *target, 0, *job)

    def cloud(self, number: int, target: tuple[int, int, int, int], data: int, prepared: Prepared) -> None:
        """The same of a cloud stream."""
        at = self._clouds_at + number * CLOUD_TASK.size
        CLOUD_TASK.pack_into(self._draft, at, *target, 0, data, *prepared.numbers[1:])

    def upload(self, stream: Any) -> None:
        """Send the draft, in the order of a torch.cuda.Stream, which is to be the current one."""
        source = self._pinned.data_ptr() + self._turn * self.nbytes
        copy_async(self._at, source, self.nbytes, stream.cuda_stream)
        self._uploaded[self._turn].record(stream)

    def launch_row(self) -> None:
        """Fuse the vector streams."""
        streams = len(self._vectors)
        launchable = kernel("tick_row.cu", "tick_row", "PPi", self._index)
        launchable.launch((streams + 1, 1, 1), THREADS, 0, self._at, self._at + self._vectors_at, streams)

    def launch_image(self, number: int, variant: tuple[int, ...]) -> None:
        """An image stream's part."""
        family, resize, pixels = variant
        defines = (f"FAMILY={family}", f"RESIZE={resize}")
        launchable = kernel("tick_image.cu", "tick_image", "P", self._index, defines)
        at = self._at + self._images_at + number * IMAGE_TASK.size
        launchable.launch((-(-pixels // THREADS), 1, 1), THREADS, 0, at)

    def launch_cloud(self, number: int, variant: tuple[int, ...]) -> None:
        """A cloud stream's part."""
        mode, features, cells, is_depth = variant
        defines = (f"MODE={mode}", f"FEATURES={features}", f"DEPTH={is_depth}")
        at = self._at + self._clouds_at + number * CLOUD_TASK.size
        processors = torch.cuda.get_device_properties(self._index).multi_processor_count
        wide = min(-(-cells // 1024), 8 * processors)
        steps = (("begin_cloud", wide), ("place_points", 4 * processors), ("end_cloud", wide))
        for name, blocks in steps[: 3 if features else 2]:
            kernel("tick_cloud.cu", name, "P", self._index, defines).launch((blocks, 1, 1), 256, 0, at)
