"""A tick on the GPU: kernels/tick/, launched for all streams of a row, for images and for clouds."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from ctypes import Structure, c_double, c_float, c_int, c_longlong, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.alignments import NAMES
from robocache_ros.ops.cuda.kernels import copy_async, kernel, new_event, packer, pinned
from robocache_ros.ops.image.conversion import ImageOptions, checked_conversion
from robocache_ros.ops.image.cuda import ConvertArguments, convert_arguments
from robocache_ros.ops.image.formats import RESIZE, ImageLayout
from robocache_ros.ops.voxel.cuda import Clouds, CloudSource, cloud_of_bytes, cloud_of_depth, reduction_define
from robocache_ros.ops.voxel.grid import Voxelization, checked_transform
from robocache_ros.ops.voxel.layouts import CloudLayout, DepthImageLayout, check_cloud, check_depth, column_sources
from robocache_ros.spec.stream import REDUCTIONS

# The inputs of the kernels of a tick: the structures of kernels/tick/row.cuh and tasks.cuh.

ZERO, KEEP, MAKE = 0, 1, 2  # enum Action


class RowTask(Structure):
    """One vector stream of a row."""

    _fields_ = (
        ("samples", c_void_p),
        ("lower", c_longlong),
        ("upper", c_longlong),
        ("weight", c_float),
        ("width", c_int),
        ("column", c_int),
        ("method", c_int),
    )


class WindowTask(Structure):
    """One stream of a row whose value is computed from all samples since the last tick."""

    _fields_ = (
        ("samples", c_void_p),
        ("slots", c_void_p),
        ("count", c_int),
        ("dim", c_int),
        ("width", c_int),
        ("column", c_int),
        ("reduction", c_int),
        ("unused", c_int),
    )


class RowTarget(Structure):
    """The addresses that a row is written to."""

    _fields_ = (
        ("row", c_void_p),
        ("again", c_void_p),
        ("host", c_void_p),
        ("status", c_void_p),
        ("values", c_int),
        ("statuses", c_int),
    )


class RowArguments(Structure):
    """The addresses of a row's target and tasks."""

    _fields_ = (
        ("target", c_void_p),
        ("tasks", c_void_p),
        ("windows", c_void_p),
        ("streams", c_int),
        ("window_count", c_int),
    )


class Target(Structure):
    """The address that an image or a grid is written to, and the action."""

    _fields_ = (
        ("out", c_void_p),
        ("before", c_void_p),
        ("bytes", c_longlong),
        ("action", c_int),
        ("unused", c_int),
    )


class ImageTask(Structure):
    """One image."""

    _fields_ = (("target", Target), ("convert", ConvertArguments))


class CloudTask(Structure):
    """One voxel grid."""

    _fields_ = (
        ("target", Target),
        ("clouds", Clouds),
        ("sums", c_void_p),
        ("cells", c_longlong),
        ("scale", c_float),
        ("limit", c_float),
        ("unit", c_double),
    )


class TaskArguments(Structure):
    """The address of the task of an image or a cloud: ImageArguments and CloudArguments."""

    _fields_ = (("task", c_void_p),)


class TaskHead(Structure):
    """The beginning of an image's or a cloud's task, which differs between ticks."""

    _fields_ = (("target", Target), ("data", c_void_p))


NO_TARGET = (0,) * 5  # the values of Target, which each tick sets


class ImageVariant(NamedTuple):
    """What the kernel of an image is compiled with, and the pixels of the result."""

    family: int
    resize: int
    pixels: int


class CloudVariant(NamedTuple):
    """What the kernels of a voxel grid are compiled with, and the cells of the grid."""

    mode: str
    features: int  # 0 of a reduction that reads none
    cells: int
    is_depth: int  # 1 for depth images


Variant: TypeAlias = ImageVariant | CloudVariant


@dataclass(frozen=True)
class Prepared:
    """How a tick computes an image or a voxel grid from one sample's bytes.

    A stream's kernels are captured once for each `variant`; `task` holds the rest, which differs between samples.
    """

    shape: tuple[int, ...]  # of the result
    dtype: torch.dtype
    variant: Variant
    task: bytes  # ImageTask or CloudTask, without the target and the address of the bytes


def nowhere(nbytes: int) -> Tensor:
    """(nbytes,) uint8 at address 0: each tick sets the address of a sample's bytes."""
    return torch.empty(nbytes, dtype=torch.uint8, device="meta")


# The launch of kernels/tick/row.cu: all vector streams of a tick.

ROW_THREADS = 128  # of a block


def launch_row(device: int, target: int, tasks: int, windows: int, streams: int, window_count: int) -> None:
    """Fuse vector streams: `streams` of two samples and `window_count` windows.

    `target`, `tasks` and `windows` are addresses of RowTarget, RowTasks and WindowTasks.
    """
    launchable = kernel("tick/row.cu", "tick_row", packer(RowArguments), device, (f"WINDOWS={int(window_count > 0)}",))
    launchable.launch((streams + window_count + 1, 1, 1), ROW_THREADS, 0, target, tasks, windows, streams, window_count)


# The launch of kernels/tick/image.cu, prepared with the checks of `convert_image`.

IMAGE_THREADS = 128  # of a block


def prepare_image(nbytes: int, layout: ImageLayout, options: ImageOptions) -> Prepared:
    """Prepare the launch for an image of `nbytes` bytes; errors are those of `convert_image`."""
    conversion = checked_conversion(nbytes, layout, options)
    out = torch.empty(conversion.shape, dtype=conversion.dtype, device="meta")
    task = packer(ImageTask).pack(*NO_TARGET, *convert_arguments(nowhere(nbytes), conversion, out))
    _, rows, columns = conversion.shape
    variant = ImageVariant(conversion.format.family, RESIZE[conversion.resize], rows * columns)
    return Prepared(conversion.shape, conversion.dtype, variant, task)


def image_defines(family: int, resize: int) -> tuple[str, ...]:
    """The constants that tick/image.cu is compiled with."""
    return (f"FAMILY={family}", f"RESIZE={resize}", f"THREADS={IMAGE_THREADS}")


def launch_image(device: int, task: int, variant: ImageVariant) -> None:
    """Convert one image; `task` is the address of its ImageTask."""
    family, resize, pixels = variant
    defines = image_defines(family, resize)
    launchable = kernel("tick/image.cu", "tick_image", packer(TaskArguments), device, defines)
    launchable.launch((-(-pixels // IMAGE_THREADS), 1, 1), IMAGE_THREADS, 0, task)


# The launches of kernels/tick/cloud.cu, prepared with the checks of `voxelize_cloud_bytes` and `voxelize_depth`.

CLOUD_THREADS = 256  # of a block


def prepare_cloud(
    nbytes: int, layout: CloudLayout, transform: Tensor | None, voxelization: Voxelization, sums: Tensor | None
) -> Prepared:
    """Prepare the launches for a cloud of `nbytes` bytes, whose address is a multiple of 16.

    Arguments and errors are those of `voxelize_cloud_bytes`. sums: (features + 1, cells) int64 scratch memory where
    features are reduced.
    """
    layout = check_cloud(nbytes, layout)
    sources = column_sources(layout, voxelization.features)
    matrix = checked_transform(transform)
    clouds = cloud_of_bytes(nowhere(nbytes), layout, sources, matrix, voxelization)
    return _prepared(clouds, voxelization, sums, 0)


def prepare_depth(
    nbytes: int, image: DepthImageLayout, transform: Tensor | None, voxelization: Voxelization, sums: Tensor | None
) -> Prepared:
    """Prepare the launches for a depth image and its colours, `nbytes` bytes in all; `sums` as in `prepare_cloud`.

    Errors are those of `voxelize_depth`.
    """
    layout = check_depth(nbytes, nbytes, image, voxelization.features)
    matrix = checked_transform(transform)
    clouds = cloud_of_depth(nowhere(nbytes), layout, 0, matrix, voxelization)
    return _prepared(clouds, voxelization, sums, 1)


def _prepared(clouds: CloudSource, voxelization: Voxelization, sums: Tensor | None, is_depth: int) -> Prepared:
    grid, reduction = voxelization.grid, voxelization.reduction
    scale = 2.0**reduction.fraction_bits
    tail = (sums.data_ptr() if sums is not None else 0, grid.cells, scale, reduction.limit, 1 / scale)
    variant = CloudVariant(reduction.mode, len(voxelization.features), grid.cells, is_depth)
    task = packer(CloudTask).pack(*NO_TARGET, *clouds.numbers, *tail)
    return Prepared(reduction.dense_shape(grid), reduction.dense_dtype, variant, task)


def cloud_defines(mode: str, features: int, is_depth: int) -> tuple[str, ...]:
    """The constants that tick/cloud.cu is compiled with."""
    return (reduction_define(mode), f"FEATURES={features}", f"DEPTH={is_depth}", f"THREADS={CLOUD_THREADS}")


def launch_cloud(device: int, task: int, variant: CloudVariant) -> None:
    """Compute one voxel grid; `task` is the address of its CloudTask."""
    mode, features, cells, is_depth = variant
    defines = cloud_defines(mode, features, is_depth)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    wide = min(-(-cells // 1024), 8 * processors)
    steps = (("begin_cloud", wide), ("place_points", 4 * processors), ("end_cloud", wide))
    for name, blocks in steps[: 3 if features else 2]:
        launchable = kernel("tick/cloud.cu", name, packer(TaskArguments), device, defines)
        launchable.launch((blocks, 1, 1), CLOUD_THREADS, 0, task)


# One tick of a fusion engine on the GPU: its plan is uploaded, and its launches read the plan.
#
# The only arguments of the launches are addresses inside the plan, so one CUDA graph of them serves every tick.

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
        """Set the slots of a window's samples, the oldest first; `number` counts only windows."""
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
