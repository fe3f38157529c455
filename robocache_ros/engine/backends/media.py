"""Images and clouds as tensors on the CPU, and the thread that decodes compressed images."""

from __future__ import annotations

import ctypes
import io
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.decode import decode_compressed
from robocache_ros.decode.images import first_picture
from robocache_ros.decode.payloads import (
    CloudPayload,
    DepthPayload,
    ImagePayload,
    Matrix,
)
from robocache_ros.engine.backends.interface import CPU, TensorFormat, TooSlowError
from robocache_ros.ops.image.conversion import ImageOptions
from robocache_ros.ops.image.convert import channels_last_layout, convert_layout
from robocache_ros.ops.image.formats import ImageLayout
from robocache_ros.ops.image.nvjpeg import decode_jpeg
from robocache_ros.ops.voxel.grid import Output, Voxelization, checked_voxelization
from robocache_ros.ops.voxel.layouts import DepthImageLayout
from robocache_ros.ops.voxel.voxelize import voxelize_depth_layout, voxelize_layout
from robocache_ros.spec import StreamSpec

# Decodes the compressed images of a stream in a separate thread, so that one image cannot block the ticks.
#
# Decoding starts when an image arrives. A tick that selects the image waits until it is decoded, so that a frame
# depends only on the messages. The wait is limited, so that no image can stop the output of the node: after
# `WAIT_S`, the image is dropped and counted as `too_slow`, and so is an image that waits behind it. The limit applies
# only after the thread has used `PROCESSOR_S` of processor time in this tick. A loaded machine therefore
# does not change which images are used, up to the size that is decoded in that time. Within the limits of
# `decode_compressed` on pixels and scans, only images of many megapixels take longer. A recording is fused without a
# thread and without a limit, because no robot waits for it.

WAIT_S = 0.05  # per tick; with a period of 20 ms, the output pauses for well under 100 ms
PROCESSOR_S = 0.02  # enough for a 1080p jpeg
AHEAD_BYTES = 64 * 2**20  # of decoded images not used yet; beyond it, images wait until a tick selects them
POLL_S = 0.005


class Job:
    """One image in the queue of the thread."""

    def __init__(self, payload: ImagePayload) -> None:
        self.payload: ImagePayload | None = payload  # None once it is decoded
        self.started = False
        self.done = threading.Event()
        self.result: Any = None
        self.error: Exception | None = None


class _Queue:
    """State that the thread shares with its owner; the owner can be released while the thread is busy."""

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.changed = threading.Condition()
        self.stopped = False

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.jobs.clear()
            self.changed.notify()


@dataclass(eq=False)
class DecodeThread:
    """Decodes the images of one stream; the thread ends when this object is released."""

    name: str  # of the stream
    decode: Callable[[ImagePayload], Any]  # to what a tick uses; raises ValueError if the image is corrupt
    size_of: Callable[[Any], int]  # bytes of a result of `decode`

    def __post_init__(self) -> None:
        self._queue = _Queue()
        self._clock: int | None = None  # clock of the thread's processor time; None until the first image
        self._waited_s = self._used_s = 0.0  # in this tick: wait of the tick, processor time of the thread meanwhile
        self._unused: set[Job] = set()
        weakref.finalize(self, self._queue.stop)

    @property
    def nbytes(self) -> int:
        """Size of the decoded images that no tick has used yet, in bytes."""
        return sum(self.size_of(job.result) for job in self._unused if job.done.is_set() and job.error is None)

    def submit(self, payload: ImagePayload) -> Job:
        """Start decoding an image, unless enough decoded images are not used yet."""
        job = Job(payload)
        if self.nbytes < AHEAD_BYTES:
            self._enqueue(job)
        self._unused.add(job)
        return job

    def result(self, job: Job) -> Any:
        """The decoded image; raises ValueError if it is corrupt, TooSlowError past the limit of a tick."""
        if not job.done.is_set():
            self._wait(job)
        self._unused.discard(job)
        if job.error:
            raise job.error
        return job.result

    def discard(self, job: Job) -> None:
        """Discard an image; it is not decoded if its decoding has not started."""
        self._unused.discard(job)
        with self._queue.changed:
            if job in self._queue.jobs:
                self._queue.jobs.remove(job)

    def end_tick(self) -> None:
        """Reset the wait to zero for the next tick."""
        self._waited_s = self._used_s = 0.0

    def _wait(self, job: Job) -> None:
        with self._queue.changed:
            waiting = not job.started
            if job in self._queue.jobs:
                self._queue.jobs.remove(job)
        if waiting:  # before the other images, which may never be selected
            self._enqueue(job, first=True)
        waited_s, used_s = self._waited_s, self._used_s
        begin_s, processor_s = time.monotonic(), self._processor_s()
        while not job.done.wait(POLL_S if self._may_wait() else 0.0):
            if not self._may_wait():
                raise TooSlowError(f"decoding it takes longer than {1e3 * WAIT_S:g} ms; publish smaller images")
            self._waited_s = waited_s + time.monotonic() - begin_s
            self._used_s = used_s + self._processor_s() - processor_s

    def _may_wait(self) -> bool:
        return self._waited_s < WAIT_S or self._used_s < PROCESSOR_S

    def _enqueue(self, job: Job, *, first: bool = False) -> None:
        if self._clock is None:
            name = f"decode {self.name}"
            thread = threading.Thread(target=_run, args=(self._queue, self.decode), name=name, daemon=True)
            thread.start()
            assert thread.ident is not None
            self._clock = time.pthread_getcpuclockid(thread.ident)
        with self._queue.changed:
            (self._queue.jobs.appendleft if first else self._queue.jobs.append)(job)
            self._queue.changed.notify()

    def _processor_s(self) -> float:
        return 0.0 if self._clock is None else time.clock_gettime(self._clock)


def warm_up(decode: Callable[[ImagePayload], Any]) -> None:
    """Decode small images, so that the first image of a stream does not wait for the import of the decoders."""
    try:
        from PIL import Image
    except ImportError:
        return  # the first image of the stream is dropped, with a hint how to install the decoder
    for encoding in ("jpeg", "png"):
        file = io.BytesIO()
        Image.new("RGB", (64, 64)).save(file, encoding.upper())
        with suppress(ValueError):  # the stream's crop may be outside of such a small image
            decode(ImagePayload(np.frombuffer(file.getvalue(), np.uint8), encoding))


def _run(queue: _Queue, decode: Callable[[ImagePayload], Any]) -> None:
    while True:
        with queue.changed:
            while not queue.jobs and not queue.stopped:
                queue.changed.wait()
            if queue.stopped:
                return
            job = queue.jobs.popleft()
            job.started = True
        assert job.payload is not None
        try:
            job.result = decode(job.payload)
        except Exception as error:  # raised again when the result is requested
            job.error = error
        job.payload = None
        job.done.set()
        del job  # its data must not stay alive until the next image


Payload: TypeAlias = ImagePayload | CloudPayload | DepthPayload


def converter(stream: StreamSpec, normalized: bool = False, channels_last: bool = False) -> Callable[[Any], Tensor]:
    """The function from payload to tensor for an image or cloud stream; arguments as in `image_tensor`."""
    if stream.kind == "image":
        return lambda payload: image_tensor(payload, stream, normalized, channels_last)
    return lambda payload: voxel_tensor(payload, stream)


def converter_on(
    device: torch.device, stream: StreamSpec, normalized: bool = False, channels_last: bool = False, jpeg: str = "cpu"
) -> Callable[[Any], Tensor]:
    """The function from payload to tensor on the CPU that uploads each payload and converts it on a CUDA device.

    The bits are those of `converter`, except with `jpeg: gpu`: nvJPEG decodes jpeg images.
    """

    def image(payload: ImagePayload) -> Tensor:
        if jpeg == "gpu" and payload.encoding == "jpeg":
            data, layout = decode_on_gpu(payload, device)
        else:
            raw = decode_compressed(payload)
            data, layout = borrow(raw.data).to(device), raw.layout
        tensor = convert_layout(data, layout, image_options(stream, normalized))
        if channels_last and tensor.dtype == torch.uint8:
            return tensor.permute(1, 2, 0).contiguous().cpu().permute(2, 0, 1)
        return tensor.cpu()

    if stream.kind == "image":
        return image
    return lambda payload: voxel_tensor(payload, stream, device).cpu()


def decode_on_gpu(image: ImagePayload, device: torch.device) -> tuple[Tensor, ImageLayout]:
    """The (nbytes,) uint8 pixels of a jpeg on a CUDA device, decoded by nvJPEG; RoboCacheError if it is corrupt."""
    pixels = decode_jpeg(np.frombuffer(first_picture(image), np.uint8), device)
    height, width, channels = pixels.shape
    encoding = "rgb8" if channels == 3 else "mono8"
    return pixels.view(-1), ImageLayout(encoding, width, height, channels * width, False)


def tensor_format(stream: StreamSpec, normalized: bool = False) -> TensorFormat:
    """The format of an image or cloud stream's tensors, as far as its spec declares it."""
    if stream.kind == "image":
        height, width = (stream.image and stream.image.size) or (0, 0)
        return TensorFormat((3, height, width), torch.float32 if normalized else torch.uint8)
    voxelization = voxelization_of(stream)
    reduction = voxelization.reduction
    return TensorFormat(reduction.dense_shape(voxelization.grid), reduction.dense_dtype)


def image_tensor(
    payload: ImagePayload, stream: StreamSpec, normalized: bool = False, channels_last: bool = False
) -> Tensor:
    """(C, H, W): uint8 for 8-bit encodings, not normalised; float32 for depth, in the message's units.

    `normalized`: always float32; uint8 images are normalised as by `ops.normalize_image`.
    `channels_last`: uint8 images in this memory format, without a copy if possible.
    """
    raw = decode_compressed(payload)
    convert = channels_last_layout if channels_last else convert_layout
    return convert(borrow(raw.data), raw.layout, image_options(stream, normalized))


def image_options(stream: StreamSpec, normalized: bool) -> ImageOptions:
    """How the images of a stream are converted to tensors; `normalized` as in `image_tensor`."""
    image = stream.image
    assert image is not None
    normalize, dtype = (image.normalize, torch.float32) if normalized else (None, None)
    return ImageOptions(image.size, image.crop, image.resize, normalize, dtype)


def voxel_tensor(payload: CloudPayload | DepthPayload, stream: StreamSpec, device: torch.device = CPU) -> Tensor:
    """(X, Y, Z) uint8 occupancy or int32 count; (F, X, Y, Z) float32 for reduced features; on the device."""
    data, placed = borrow(payload.data).to(device), payload.layout
    pose, voxelization = sensor_pose(placed.transform, stream), voxelization_of(stream)
    if isinstance(placed.layout, DepthImageLayout):
        color = data if placed.layout.color else None
        return voxelize_depth_layout(data, color, placed.layout, pose, voxelization, Output()).grid
    return voxelize_layout(data, placed.layout, pose, voxelization, Output()).grid


def voxelization_of(stream: StreamSpec) -> Voxelization:
    """The grid and the reduction that a stream's spec declares."""
    grid = stream.voxels
    assert grid is not None
    return checked_voxelization(grid.origin_m, grid.size_m, grid.shape, grid.reduce, grid.features)


def sensor_pose(transform: Matrix | None, stream: StreamSpec) -> Tensor | None:
    """(3, 4) float32 T_grid_sensor: from the spec, or from the sample; None if both frames are the same."""
    grid = stream.voxels
    assert grid is not None
    matrix = grid.extrinsic.matrix if grid.extrinsic else transform
    return None if matrix is None else torch.tensor(matrix)


def borrow(data: NDArray[np.uint8]) -> Tensor:
    """A tensor that shares bytes that are only read, without a copy; torch warns about read-only arrays."""
    if data.flags.writeable:
        return torch.from_numpy(data)
    memory = (ctypes.c_uint8 * data.size).from_address(data.ctypes.data)
    memory.data = data  # type: ignore[attr-defined]  # the memory is kept as long as the tensor
    return torch.from_numpy(np.ctypeslib.as_array(memory))
