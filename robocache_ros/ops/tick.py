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
from torch import Tensor

from robocache_ros.alignments import NAMES
from robocache_ros.ops.cuda.kernels import copy_async, kernel, packer, pinned
from robocache_ros.ops.image.conversion import ImageOptions, checked_conversion
from robocache_ros.ops.image.cuda import ConvertArguments, convert_arguments
from robocache_ros.ops.image.formats import RESIZE, ImageLayout
from robocache_ros.ops.resample.selection import TickSelection
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


# One tick of a fusion engine on the GPU: its plan is uploaded, and its launches read the plan. The samples of vectors
# are part of the plan: they are few bytes, and a copy of each as it arrives would take more time than all else.
#
# The only arguments of the launches are addresses inside the plan, so one CUDA graph of them serves every tick.

UPLOADS = 4  # plans in flight before the host must wait to write another

_TASK_HEAD = packer(TaskHead)
_IMAGE_BYTES, _CLOUD_BYTES = ctypes.sizeof(ImageTask), ctypes.sizeof(CloudTask)
_ALIGNED = 16


class VectorSource(NamedTuple):
    """One vector stream of a tick."""

    rows: Sequence[bytes]  # by slot: the (D,) float32 values of a sample
    dim: int  # D
    align: str  # the name of an alignment; of a window any
    samples: int = 0  # n, samples of a window; 0 for a stream that is no window
    reduce: str = ""  # reduction of a window to one row

    @property
    def width(self) -> int:
        """Columns in the row."""
        return self.dim * (self.samples if self.samples and not self.reduce else 1)


class _Layout:
    """Places parts of a plan one after the other."""

    def __init__(self) -> None:
        self.letters, self.nbytes = "@", 0

    def add(self, letters: str) -> int:
        """Place what `struct` packs by `letters`; returns where."""
        at = -(-self.nbytes // _ALIGNED) * _ALIGNED
        self.letters += f"{at - self.nbytes}x{letters}"
        self.nbytes = at + struct.calcsize(letters)
        return at


class TickPlan:
    """The tasks of a tick and the samples of its vector streams, in pinned memory and in GPU memory.

    Between `begin` and `upload`, write `row` and the task of every image and cloud stream, each tick.

    Args:
        vectors: every vector stream, in the order of its columns.
        images: number of image streams.
        clouds: number of cloud streams.
        device: CUDA device.
    """

    def __init__(self, vectors: Sequence[VectorSource], images: int, clouds: int, device: torch.device) -> None:
        columns = np.cumsum([0, *(source.width for source in vectors)]).tolist()
        placed = list(zip(vectors, columns, strict=False))
        blended = [(source, column) for source, column in placed if not source.samples]
        windows = [(source, column) for source, column in placed if source.samples]
        ages = sum(source.samples for source, _ in windows if not source.reduce)
        values, statuses = columns[-1], 2 * (len(vectors) + images + clouds) + ages
        most = max([source.samples for source, _ in windows], default=0)
        layout = _Layout()
        layout.add(packer(RowTarget).format[1:])
        status_at = layout.add(f"{statuses}f")
        self._vectors_at = layout.add(len(blended) * packer(RowTask).format[1:])
        self._windows_at = layout.add(len(windows) * packer(WindowTask).format[1:])
        slots_at = layout.add(f"{4 * most}s")  # 0, 1, ...: the samples of a window follow each other
        places = [layout.add(2 * f"{4 * source.dim}s") for source, _ in blended]
        window_places = [layout.add(f"{4 * source.dim * source.samples}s") for source, _ in windows]
        self._pack = struct.Struct(layout.letters).pack_into
        self._images_at = layout.add(f"{images * _IMAGE_BYTES}x")
        self._clouds_at = layout.add(f"{clouds * _CLOUD_BYTES}x")
        self.nbytes = -(-layout.nbytes // 256) * 256
        self.waits = 0  # times that the host waited until an earlier tick had read its plan
        self._pinned = pinned(UPLOADS * self.nbytes)
        self._sources = [self._pinned.data_ptr() + turn * self.nbytes for turn in range(UPLOADS)]
        drafts = self._pinned.numpy().reshape(UPLOADS, self.nbytes)
        self._drafts = [memoryview(draft.data) for draft in drafts]
        self._device = torch.zeros(self.nbytes, dtype=torch.uint8, device=device)
        self._at = start = self._device.data_ptr()
        self._index: int = device.index
        self._turn = 0
        self._target = (start + status_at, values, statuses)
        # The rows of a stream, and the numbers of its RowTask or WindowTask that are the same in every tick.
        self._blended = [
            (source.rows, start + place, (source.dim, column, NAMES.index(source.align)))
            for (source, column), place in zip(blended, places, strict=True)
        ]
        self._windows = [
            (source.rows, (start + place, start + slots_at), (source.dim, source.width, column, _reduction(source), 0))
            for (source, column), place in zip(windows, window_places, strict=True)
        ]
        self._slots = np.arange(most, dtype=np.int32).tobytes()

    def begin(self, read: Any) -> None:
        """Select the next draft in pinned memory; waits for `read`, the event after the tick that used it before."""
        self._turn = (self._turn + 1) % UPLOADS
        if not read.query():
            self.waits += 1
            read.synchronize()
        self._draft = self._drafts[self._turn]

    def row(
        self,
        addresses: tuple[int, int, int],
        status: Sequence[float],
        blended: Sequence[TickSelection],
        windows: Sequence[Sequence[int]],
    ) -> None:
        """Set the row of the tick.

        Args:
            addresses: that the fused row is written to: row, again and host of RowTarget.
            status: the status columns.
            blended: of each vector stream that is no window, the slots that it is blended from.
            windows: of each window, the slots of its samples, the oldest first.
        """
        tasks: list[Any] = [*addresses, *self._target, *status]
        samples: list[bytes] = [self._slots]
        for (rows, place, constants), (lower, upper, weight, _, _) in zip(self._blended, blended, strict=True):
            if lower < 0:
                tasks += (place, -1, -1, 0.0, *constants)
                samples += (b"", b"")
            else:
                tasks += (place, 0, lower != upper, weight, *constants)
                samples += (rows[lower], rows[upper])
        for (rows, places, numbers), slots in zip(self._windows, windows, strict=True):
            tasks += (*places, len(slots), *numbers)
            samples.append(b"".join([rows[slot] for slot in slots]))
        self._pack(self._draft, 0, *tasks, *samples)

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

    def upload(self, stream: int) -> None:
        """Copy the draft to the GPU on a CUDA stream, by its handle."""
        copy_async(self._at, self._sources[self._turn], self.nbytes, stream)

    def launch_row(self) -> None:
        """Fuse the vector streams."""
        tasks, windows = self._at + self._vectors_at, self._at + self._windows_at
        launch_row(self._index, self._at, tasks, windows, len(self._blended), len(self._windows))

    def launch_image(self, number: int, variant: ImageVariant) -> None:
        """Compute an image stream's image."""
        launch_image(self._index, self._at + self._images_at + number * _IMAGE_BYTES, variant)

    def launch_cloud(self, number: int, variant: CloudVariant) -> None:
        """Compute a cloud stream's grid."""
        launch_cloud(self._index, self._at + self._clouds_at + number * _CLOUD_BYTES, variant)


def _reduction(source: VectorSource) -> int:
    return 1 + REDUCTIONS.index(source.reduce) if source.reduce else 0
