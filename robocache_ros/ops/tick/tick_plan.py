"""One tick of a fusion engine on the GPU: its plan is uploaded, and its launches read the plan.

The only arguments of the launches are addresses inside the plan, so one CUDA graph of them serves every tick.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.alignments import NAMES
from robocache_ros.ops.cuda.gpu_memory import copy_async, new_event, pinned
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.tick.cloud import launch_cloud
from robocache_ros.ops.tick.image import launch_image
from robocache_ros.ops.tick.prepared import CloudVariant, ImageVariant, Prepared
from robocache_ros.ops.tick.row import launch_row
from robocache_ros.ops.tick.tasks import CloudTask, ImageTask, RowTarget, RowTask, TaskHead

UPLOADS = 4  # plans in flight before the host must wait to write another

_ROW_TARGET, _ROW_TASK, _TASK_HEAD = (packer(structure) for structure in (RowTarget, RowTask, TaskHead))
_IMAGE_BYTES, _CLOUD_BYTES = ctypes.sizeof(ImageTask), ctypes.sizeof(CloudTask)


class TickPlan:
    """The tasks of a tick, in pinned memory and in GPU memory.

    Between `begin` and `upload`, write the task of every stream, each tick.

    Args:
        samples: the (slots, width) float32 tensor of each vector stream.
        methods: the alignment of each of them.
        images: number of image streams.
        clouds: number of cloud streams.
        device: CUDA device.
    """

    def __init__(
        self, samples: Sequence[Tensor], methods: Sequence[str], images: int, clouds: int, device: torch.device
    ) -> None:
        widths = [rows.shape[1] for rows in samples]
        self._vectors = [
            (rows.data_ptr(), width, sum(widths[:i]), NAMES.index(method))
            for i, (rows, width, method) in enumerate(zip(samples, widths, methods, strict=True))
        ]
        self._values, self._statuses = sum(widths), 2 * (len(samples) + images + clouds)
        sizes = (_ROW_TARGET.size, 4 * self._statuses, len(samples) * _ROW_TASK.size, images * _IMAGE_BYTES)
        starts = np.cumsum([-(-size // 16) * 16 for size in sizes]).tolist()
        self._status_at, self._vectors_at, self._images_at, self._clouds_at = starts
        self.nbytes = -(-(self._clouds_at + clouds * _CLOUD_BYTES) // 256) * 256
        self.waits = 0  # times that the host waited until an earlier tick's plan was read
        self._pinned = pinned(UPLOADS * self.nbytes)
        drafts = self._pinned.numpy().reshape(UPLOADS, self.nbytes)
        self._drafts = [memoryview(draft.data) for draft in drafts]
        self._uploaded = [new_event() for _ in range(UPLOADS)]
        self._device = torch.zeros(self.nbytes, dtype=torch.uint8, device=device)
        self._at = self._device.data_ptr()
        self._index: int = device.index
        self._turn = 0

    def begin(self) -> None:
        """Select the next draft in pinned memory; waits where its upload is not complete."""
        self._turn = (self._turn + 1) % UPLOADS
        if not self._uploaded[self._turn].query():
            self.waits += 1
            self._uploaded[self._turn].synchronize()
        self._draft = self._drafts[self._turn]

    def row(self, row: int, again: int, host: int, status: NDArray[np.float32]) -> None:
        """Set the addresses that the fused row is written to, and its (2 N,) float32 valid and age."""
        _ROW_TARGET.pack_into(
            self._draft, 0, row, again, host, self._at + self._status_at, self._values, self._statuses
        )
        self._draft[self._status_at : self._status_at + 4 * self._statuses] = status.tobytes()

    def vector(self, number: int, lower: int, upper: int, weight: float) -> None:
        """Set the slots that a vector stream is blended from, and the weight of the upper one; lower -1 for none."""
        samples, width, column, method = self._vectors[number]
        at = self._vectors_at + number * _ROW_TASK.size
        _ROW_TASK.pack_into(self._draft, at, samples, lower, upper, weight, width, column, method)

    def image(self, number: int, target: tuple[int, int, int, int], data: int, prepared: Prepared) -> None:
        """Set an image stream's task.

        Args:
            number: of the stream.
            target: address to write, address of the earlier image, bytes of each, and the action.
            data: address of the raw bytes, where the action is MAKE.
            prepared: from `prepare_image`.
        """
        self._put_task(self._images_at + number * _IMAGE_BYTES, target, data, prepared)

    def cloud(self, number: int, target: tuple[int, int, int, int], data: int, prepared: Prepared) -> None:
        """Set a cloud stream's task, as `image` does."""
        self._put_task(self._clouds_at + number * _CLOUD_BYTES, target, data, prepared)

    def _put_task(self, at: int, target: tuple[int, int, int, int], data: int, prepared: Prepared) -> None:
        self._draft[at : at + len(prepared.task)] = prepared.task
        _TASK_HEAD.pack_into(self._draft, at, *target, 0, data)

    def upload(self, stream: Any) -> None:
        """Copy the draft to the GPU on a torch.cuda.Stream, which must be the current one."""
        source = self._pinned.data_ptr() + self._turn * self.nbytes
        copy_async(self._at, source, self.nbytes, stream.cuda_stream)
        self._uploaded[self._turn].record(stream)

    def launch_row(self) -> None:
        """Fuse the vector streams."""
        launch_row(self._index, self._at, self._at + self._vectors_at, len(self._vectors))

    def launch_image(self, number: int, variant: ImageVariant) -> None:
        """Compute an image stream's image."""
        launch_image(self._index, self._at + self._images_at + number * _IMAGE_BYTES, variant)

    def launch_cloud(self, number: int, variant: CloudVariant) -> None:
        """Compute a cloud stream's grid."""
        launch_cloud(self._index, self._at + self._clouds_at + number * _CLOUD_BYTES, variant)
