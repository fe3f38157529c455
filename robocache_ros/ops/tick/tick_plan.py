"""One tick of a fusion engine on the GPU: its plan is uploaded, and its launches read the plan.

The only arguments of the launches are addresses inside the plan, so one CUDA graph of them serves every tick.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

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
from robocache_ros.ops.tick.tasks import CloudTask, ImageTask, RowTarget, RowTask, TaskHead, WindowTask
from robocache_ros.spec.message_types import REDUCTIONS

UPLOADS = 4  # plans in flight before the host must wait to write another

_ROW_TARGET, _ROW_TASK, _WINDOW_TASK, _TASK_HEAD = map(packer, (RowTarget, RowTask, WindowTask, TaskHead))
_IMAGE_BYTES, _CLOUD_BYTES = ctypes.sizeof(ImageTask), ctypes.sizeof(CloudTask)


class VectorSource(NamedTuple):
    """One vector stream of a tick."""

    rows: Tensor  # (slots, D) float32
    align: str  # the name of an alignment; of a window any
    samples: int = 0  # n, samples of a window; 0 for a stream that is no window
    reduce: str = ""  # reduction of a window to one row

    @property
    def width(self) -> int:
        """Columns in the row."""
        return self.rows.shape[1] * (self.samples if self.samples and not self.reduce else 1)


class TickPlan:
    """The tasks of a tick, in pinned memory and in GPU memory.

    Between `begin` and `upload`, write the task of every stream, each tick.

    Args:
        vectors: every vector stream, in the order of its columns.
        images: number of image streams.
        clouds: number of cloud streams.
        device: CUDA device.
    """

    def __init__(self, vectors: Sequence[VectorSource], images: int, clouds: int, device: torch.device) -> None:
        columns = np.cumsum([0, *(source.width for source in vectors)]).tolist()
        placed = list(zip(vectors, columns, strict=False))
        self._vectors = [
            (source.rows.data_ptr(), source.width, column, NAMES.index(source.align))
            for source, column in placed
            if not source.samples
        ]
        windows = [(source, column) for source, column in placed if source.samples]
        ages = sum(source.samples for source, _ in windows if not source.reduce)
        self._values, self._statuses = columns[-1], 2 * (len(vectors) + images + clouds) + ages
        slots = sum(source.samples for source, _ in windows)
        sizes = [_ROW_TARGET.size, 4 * self._statuses, len(self._vectors) * _ROW_TASK.size]
        sizes += [len(windows) * _WINDOW_TASK.size, 4 * slots, images * _IMAGE_BYTES]
        starts = np.cumsum([-(-size // 16) * 16 for size in sizes]).tolist()
        self._status_at, self._vectors_at, self._windows_at, slots_at, self._images_at, self._clouds_at = starts
        self._windows = []
        for source, column in windows:
            self._windows.append((source, column, slots_at))
            slots_at += 4 * source.samples
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
        """Set the addresses that the fused row is written to, and its float32 status columns."""
        _ROW_TARGET.pack_into(
            self._draft, 0, row, again, host, self._at + self._status_at, self._values, self._statuses
        )
        self._draft[self._status_at : self._status_at + 4 * self._statuses] = status.tobytes()

    def vector(self, number: int, lower: int, upper: int, weight: float) -> None:
        """Set the slots that a vector stream is blended from, and the weight of the upper one; lower -1 for none.

        `number` counts the vector streams that are no windows.
        """
        samples, width, column, method = self._vectors[number]
        at = self._vectors_at + number * _ROW_TASK.size
        _ROW_TASK.pack_into(self._draft, at, samples, lower, upper, weight, width, column, method)

    def window(self, number: int, slots: Sequence[int]) -> None:
        """Set the slots of a window's samples, the oldest first; `number` counts windows alone."""
        source, column, slots_at = self._windows[number]
        reduction = 1 + REDUCTIONS.index(source.reduce) if source.reduce else 0
        numbers = (len(slots), source.rows.shape[1], source.width, column, reduction, 0)
        at = self._windows_at + number * _WINDOW_TASK.size
        _WINDOW_TASK.pack_into(self._draft, at, source.rows.data_ptr(), self._at + slots_at, *numbers)
        struct.pack_into(f"{len(slots)}i", self._draft, slots_at, *slots)

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
        tasks, windows = self._at + self._vectors_at, self._at + self._windows_at
        launch_row(self._index, self._at, tasks, windows, len(self._vectors), len(self._windows))

    def launch_image(self, number: int, variant: ImageVariant) -> None:
        """Compute an image stream's image."""
        launch_image(self._index, self._at + self._images_at + number * _IMAGE_BYTES, variant)

    def launch_cloud(self, number: int, variant: CloudVariant) -> None:
        """Compute a cloud stream's grid."""
        launch_cloud(self._index, self._at + self._clouds_at + number * _CLOUD_BYTES, variant)
