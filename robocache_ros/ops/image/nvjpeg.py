"""Decodes jpeg images on the GPU, one or a batch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.ops.cuda.kernels import raw_stream

# JPEG on the GPU, through torchvision's nvJPEG.
#
# Its bits are not libjpeg's: it rounds the inverse transform and the upsampling of colours differently, by a few
# counts.


@cache
def _decoder() -> Any:
    return need("torchvision.io", "nvjpeg").decode_jpeg


def require_jpeg() -> None:
    """Raise RoboCacheError if torchvision is not installed."""
    _decoder()


def decode_jpeg(data: NDArray[np.uint8], device: torch.device) -> Tensor:
    """(H, W, C) uint8 of a file's (nbytes,) uint8, C 3 or 1, contiguous; raises RoboCacheError for a bad file."""
    try:
        planes: Tensor = _decoder()(torch.from_numpy(data.copy()), device=device)
    except torch.cuda.OutOfMemoryError:
        raise  # the file may be good
    except RuntimeError as error:
        raise RoboCacheError(f"data: nvJPEG cannot read this jpeg: {str(error).splitlines()[0]}") from None
    return planes.permute(1, 2, 0).contiguous()


# Many jpeg files at once on the GPU, by NVIDIA's nvJPEG library itself, into one tensor.
#
# GPUs from the A100 on decode baseline files by hardware of their own; the others are decoded one by one, by kernels.
# The bits are not libjpeg's: see above.

_DEFAULT, _HARDWARE = 0, 3  # nvjpegBackend_t
_RGB_INTERLEAVED = 5  # nvjpegOutputFormat_t
_ARCH_MISMATCH = 7  # nvjpegStatus_t: this GPU has no such hardware
_CHANNELS = 4  # of nvjpegImage_t: four addresses, then four row lengths
_POINTER = ctypes.c_void_p


class JpegBatchDecoder:
    """Decodes on one device. Not for several threads at once.

    Args:
        device: a CUDA device.

    Errors:
        RoboCacheError: nvJPEG is not installed, or does not work on the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._library = library()
        self._device = device
        with torch.cuda.device(device):
            self._single = self._created(_DEFAULT)
            assert self._single
            self._single_state = self._made("nvjpegJpegStateCreate", self._single)
            self._batched = self._created(_HARDWARE)
            if self._batched:
                self._batched_state = self._made("nvjpegJpegStateCreate", self._batched)
                self._header = self._made("nvjpegJpegStreamCreate", self._batched)

    def decode(
        self, addresses: NDArray[np.int64], sizes: NDArray[np.int64], out: Tensor, places: NDArray[np.int64]
    ) -> list[int]:
        """Decode files of colour images into `out`, on torch's current stream.

        Args:
            addresses: (N,) of the files in host memory, which stays as it is until the stream is done with them.
            sizes: (N,) bytes of each.
            out: (M, H, W, 3) uint8 contiguous, of the files' height and width.
            places: (N,) where in `out`.

        Returns:
            the numbers of the files that nvJPEG cannot read; their pixels are undefined.
        """
        images = np.zeros((len(places), 2 * _CHANNELS), np.uint64)
        images[:, 0] = out.data_ptr() + places * out.stride(0)
        images[:, _CHANNELS] = out.stride(1)
        with torch.cuda.device(self._device):
            stream = raw_stream(out.device.index)
            together = self._supported(addresses, sizes)
            if len(together) and self._decode_together(addresses[together], sizes[together], images[together], stream):
                together = together[:0]  # one of them is damaged
            apart = np.setdiff1d(np.arange(len(places)), together).tolist()
            return [i for i in apart if self._decode_one(int(addresses[i]), int(sizes[i]), images[i], stream)]

    def _supported(self, addresses: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The files that the hardware decodes."""
        found, answer = [], ctypes.c_int()
        if self._batched:
            parse, ask = self._library.nvjpegJpegStreamParseHeader, self._library.nvjpegDecodeBatchedSupported
            for i, (address, size) in enumerate(zip(addresses.tolist(), sizes.tolist(), strict=True)):
                if parse(self._batched, _POINTER(address), ctypes.c_size_t(size), self._header) == 0:
                    answer.value = 1
                    if ask(self._batched, self._header, ctypes.byref(answer)) == 0 and answer.value == 0:
                        found.append(i)
        return np.array(found, np.int64)

    def _decode_together(
        self, addresses: NDArray[np.int64], sizes: NDArray[np.int64], images: NDArray[np.uint64], stream: int
    ) -> int:
        handle, state, count = self._batched, self._batched_state, ctypes.c_int(len(images))
        status: int = self._library.nvjpegDecodeBatchedInitialize(handle, state, count, 1, _RGB_INTERLEAVED)
        if status == 0:
            arrays = [np.ascontiguousarray(each) for each in (addresses, sizes, images)]
            pointers = [_POINTER(array.ctypes.data) for array in arrays]
            status = self._library.nvjpegDecodeBatched(handle, state, *pointers, _POINTER(stream))
        return status

    def _decode_one(self, address: int, size: int, image: NDArray[np.uint64], stream: int) -> int:
        file = _POINTER(address), ctypes.c_size_t(size), _RGB_INTERLEAVED, _POINTER(image.ctypes.data)
        status: int = self._library.nvjpegDecode(self._single, self._single_state, *file, _POINTER(stream))
        torch.cuda.current_stream(self._device).synchronize()  # the next file needs the same buffers
        return status

    def _created(self, backend: int) -> ctypes.c_void_p | None:
        handle = _POINTER()
        status = self._library.nvjpegCreateEx(backend, None, None, 0, ctypes.byref(handle))
        if status == _ARCH_MISMATCH and backend == _HARDWARE:
            return None
        self._check(status, "nvjpegCreateEx")
        return handle

    def _made(self, function: str, handle: ctypes.c_void_p) -> ctypes.c_void_p:
        made = _POINTER()
        self._check(getattr(self._library, function)(handle, ctypes.byref(made)), function)
        return made

    def _check(self, status: int, function: str) -> None:
        if status:
            raise RoboCacheError(f"jpeg: nvJPEG does not work on {self._device} ({function}: {status}); use jpeg='cpu'")


@cache
def library() -> Any:
    """The nvJPEG library: CUDA's own, or that of a Python package.

    Errors:
        RoboCacheError: there is none.
    """
    for name in _places():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RoboCacheError("libnvjpeg: not installed; install it with: pip install 'robocache_ros[nvjpeg]'")


def _places() -> Iterator[str]:
    version = (torch.version.cuda or "13").split(".")[0]
    yield f"libnvjpeg.so.{version}"
    packages = (("torchvision", "../torchvision.libs", "libnvjpeg.*"), ("nvidia", ".", "*/lib/libnvjpeg.*"))
    for package, folder, pattern in packages:
        spec = find_spec(package)
        for parent in spec.submodule_search_locations or () if spec else ():
            yield from map(str, sorted((Path(parent) / folder).resolve().glob(pattern)))
