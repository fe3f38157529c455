"""GPU memory and events that another process of the machine can open by a handle."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda.kernels import copy_async, import_cupy_cuda, raw_stream

# cudaEventInterprocess needs cudaEventDisableTiming too.
_INTERPROCESS = 0x02 | 0x04


class SharedRing:
    """A block of GPU memory that this process allocates and others map, with an event for each slot.

    The memory comes from cudaMalloc, not from a pool, because a handle opens the complete allocation. Work on the
    current stream before `record(slot)` completes before work on another process' stream after `wait(slot)`; no host
    waits.

    Args:
        nbytes: of the block.
        slots: events.
        device: index of the CUDA device.

    Raises:
        RoboCacheError: the memory is not available, or the driver gives no handles for it.
    """

    def __init__(self, nbytes: int, slots: int, device: int) -> None:
        runtime = _runtime()
        self._device = device
        self._events: list[int] = []
        self._pointer = 0
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # creates the context
            try:
                self._pointer = runtime.malloc(nbytes)
                runtime.memset(self._pointer, 0, nbytes)
                self._events += (runtime.eventCreateWithFlags(_INTERPROCESS) for _ in range(slots))
                self._where = {
                    "pid": os.getpid(),
                    "bus": runtime.deviceGetPCIBusId(device),
                    "memory": runtime.ipcGetMemHandle(self._pointer).hex(),
                    "events": [runtime.ipcGetEventHandle(event).hex() for event in self._events],
                }
            except runtime.CUDARuntimeError as error:
                self.close()
                raise RoboCacheError(
                    f"cuda:{device}: no ring of {nbytes / 2**20:.1f} MiB for other processes ({error})"
                ) from None
            self.tensor = _as_tensor(_Block(_interface(self._pointer, nbytes), device, self))

    def block(self, start: int, nbytes: int) -> tuple[object, Tensor]:
        """(nbytes,) uint8 of the ring."""
        return self, self.tensor[start : start + nbytes]

    def copy(self, target: Tensor, value: Tensor) -> None:
        """Put a value into a view of the ring, in the order of the current stream."""
        if value.device == target.device and value.is_contiguous():
            copy_async(target.data_ptr(), value.data_ptr(), value.nbytes, raw_stream(self._device))
        else:
            target.copy_(value, non_blocking=True)

    def record(self, slot: int) -> None:
        """Let readers of the slot wait for the work that is on the current stream now."""
        _runtime().eventRecord(self._events[slot], raw_stream(self._device))

    def wait(self, slot: int) -> None:
        """Do nothing: the writer's own stream needs no wait."""

    def fence(self) -> Callable[[], bool] | None:
        """None: the writer's own stream needs no fence."""
        return None

    def describe(self) -> dict[str, Any]:
        """The handles. A process that has them can map the memory, so they are sent to checked peers only."""
        return self._where

    def close(self) -> None:
        """Free memory and events after all launched work has completed."""
        runtime = _runtime()
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            for event in self._events:
                runtime.eventDestroy(event)
            if self._pointer:
                runtime.free(self._pointer)
        self._events, self._pointer = [], 0


class MappedRing:
    """A SharedRing of another process, mapped until the last tensor that views it is freed.

    Args:
        where: the result of `SharedRing.describe`.
        nbytes: of the block.

    Raises:
        RoboCacheError: CUDA or the device is not visible to this process, or the driver refuses the handles.
    """

    def __init__(self, where: dict[str, Any], nbytes: int) -> None:
        if not torch.cuda.is_available():
            raise RoboCacheError("frames: are on a GPU, and this process sees none; make the GPU visible to it")
        if where["pid"] == os.getpid():
            raise RoboCacheError(
                "frames: are on a GPU in this process, which cannot map its own handle; read them in another process"
            )
        runtime = _runtime()
        try:
            self._device = device = runtime.deviceGetByPCIBusId(where["bus"])
            with torch.cuda.device(device):
                torch.cuda.current_stream()
                self._events = _Events([runtime.ipcOpenEventHandle(bytes.fromhex(e)) for e in where["events"]])
                pointer = runtime.ipcOpenMemHandle(bytes.fromhex(where["memory"]))
        except runtime.CUDARuntimeError as error:
            raise RoboCacheError(
                f"frames: GPU memory of process {where['pid']} cannot be mapped ({error}); restart that process"
            ) from None
        self._mapping = _Mapping(pointer, runtime.ipcCloseMemHandle)
        self.tensor = _as_tensor(_Block(_interface(pointer, nbytes), device, self._mapping))
        # torch (at least 2.11 to 2.13) never frees the shape and address that it receives: keep one of each per slot.
        self._interfaces: dict[tuple[int, int], dict[str, Any]] = {}

    def block(self, start: int, nbytes: int) -> tuple[object, Tensor]:
        """(nbytes,) uint8 of the ring, and the object that its tensors keep alive."""
        interface = self._interfaces.get((start, nbytes))
        if interface is None:
            interface = self._interfaces[start, nbytes] = _interface(self._mapping.pointer + start, nbytes)
        owner = _Block(interface, self._device, self._mapping)
        return owner, _as_tensor(owner)

    def copy(self, target: Tensor, value: Tensor) -> None:
        """Do nothing: a reader does not write."""

    def record(self, slot: int) -> None:
        """Do nothing: a reader does not write."""

    def wait(self, slot: int) -> None:
        """Let the current stream wait until the slot is written; the host does not wait."""
        _runtime().streamWaitEvent(raw_stream(self._device), self._events.handles[slot])

    def fence(self) -> Callable[[], bool] | None:
        """A function that tells whether the work that is on the current stream now has completed."""
        event: Any = torch.cuda.current_stream(self._device).record_event()
        done: Callable[[], bool] = event.query
        return done

    def describe(self) -> dict[str, Any]:
        """Nothing: a reader does not share handles."""
        return {}

    def close(self) -> None:
        """Do nothing: the mapping is closed when the last tensor that views it is freed."""


class _Events:
    """Opened event handles, destroyed with this object."""

    def __init__(self, handles: list[int]) -> None:
        self.handles = handles
        self._destroy = _runtime().eventDestroy

    def __del__(self) -> None:
        for event in self.handles:
            self._destroy(event)


class _Mapping:
    """Memory of another process, unmapped with this object."""

    def __init__(self, pointer: int, close: Callable[[int], None]) -> None:
        self.pointer = pointer
        self._close = close

    def __del__(self) -> None:
        self._close(self.pointer)


class _Block:
    """A block of GPU memory in the form that torch reads. A tensor over it keeps it alive, and it keeps the memory."""

    def __init__(self, interface: dict[str, Any], device: int, memory: object) -> None:
        self.device = device
        self._memory = memory
        self.__cuda_array_interface__ = interface


def _interface(pointer: int, nbytes: int) -> dict[str, Any]:
    return {"shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 3}


def _as_tensor(block: _Block) -> Tensor:
    return torch.as_tensor(block, device=f"cuda:{block.device}")


@cache
def _runtime() -> Any:
    import_cupy_cuda()
    return import_module("cupy.cuda.runtime")
