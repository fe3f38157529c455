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
from robocache_ros.ops.cuda.gpu_memory import copy_async
from robocache_ros.ops.cuda.loader import import_cupy_cuda, raw_stream

# cudaEventInterprocess needs cudaEventDisableTiming too.
_INTERPROCESS = 0x02 | 0x04


class SharedRing:
    """A block of GPU memory that this process makes and others map, with an event for each slot.

    Memory of cudaMalloc, not of a pool: a handle opens the complete allocation. What the current stream did before
    `record(slot)` is done before what another process' stream does after `wait(slot)`; no host waits.

    Args:
        nbytes: of the block.
        slots: events.
        device: index of the CUDA device.

    Raises:
        RoboCacheError: the memory is not available, or the driver does not give handles for it.
    """

    def __init__(self, nbytes: int, slots: int, device: int) -> None:
        runtime = _runtime()
        self._device = device
        self._events: list[int] = []
        self._pointer = 0
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # makes the context
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
        """What the current stream was given so far is what readers of the slot wait for."""
        _runtime().eventRecord(self._events[slot], raw_stream(self._device))

    def wait(self, slot: int) -> None:
        """The writer's own stream needs no waiting."""

    def fence(self) -> Callable[[], bool] | None:
        """The writer's own stream needs no fence."""
        return None

    def describe(self) -> dict[str, Any]:
        """The handles. Whoever has them can map the memory: they go to checked peers alone."""
        return self._where

    def close(self) -> None:
        """Give memory and events back, once all that was launched is through."""
        runtime = _runtime()
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            for event in self._events:
                runtime.eventDestroy(event)
            if self._pointer:
                runtime.free(self._pointer)
        self._events, self._pointer = [], 0


class MappedRing:
    """A SharedRing of another process, mapped; unmapped when the last tensor that views it is gone.

    Args:
        where: what `SharedRing.describe` gave.
        nbytes: of the block.

    Raises:
        RoboCacheError: no CUDA here, the device is not visible to this process, or the driver refuses.
    """

    def __init__(self, where: dict[str, Any], nbytes: int) -> None:
        if not torch.cuda.is_available():
            raise RoboCacheError("the frames are on a GPU, and this process sees none")
        if where["pid"] == os.getpid():
            raise RoboCacheError("the frames are on a GPU in this very process, which cannot map its own handle")
        runtime = _runtime()
        try:
            self._device = device = runtime.deviceGetByPCIBusId(where["bus"])
            with torch.cuda.device(device):
                torch.cuda.current_stream()
                self._events = _Events([runtime.ipcOpenEventHandle(bytes.fromhex(e)) for e in where["events"]])
                pointer = runtime.ipcOpenMemHandle(bytes.fromhex(where["memory"]))
        except runtime.CUDARuntimeError as error:
            raise RoboCacheError(f"GPU memory of process {where['pid']} cannot be mapped ({error})") from None
        self._mapping = _Mapping(pointer, runtime.ipcCloseMemHandle)
        self.tensor = _as_tensor(_Block(_interface(pointer, nbytes), device, self._mapping))
        # torch (2.11 to 2.13 at least) never lets go of the shape and the address that it is given: one of each a slot.
        self._interfaces: dict[tuple[int, int], dict[str, Any]] = {}

    def block(self, start: int, nbytes: int) -> tuple[object, Tensor]:
        """(nbytes,) uint8 of the ring, and the object that its tensors keep."""
        interface = self._interfaces.get((start, nbytes))
        if interface is None:
            interface = self._interfaces[start, nbytes] = _interface(self._mapping.pointer + start, nbytes)
        owner = _Block(interface, self._device, self._mapping)
        return owner, _as_tensor(owner)

    def copy(self, target: Tensor, value: Tensor) -> None:
        """A reader writes nothing."""

    def record(self, slot: int) -> None:
        """A reader writes nothing."""

    def wait(self, slot: int) -> None:
        """The current stream goes on when the slot is written; the host does not wait."""
        _runtime().streamWaitEvent(raw_stream(self._device), self._events.handles[slot])

    def fence(self) -> Callable[[], bool] | None:
        """Tells when all that the current stream was given so far is through."""
        event: Any = torch.cuda.current_stream(self._device).record_event()
        done: Callable[[], bool] = event.query
        return done

    def describe(self) -> dict[str, Any]:
        """A reader hands nothing on."""
        return {}

    def close(self) -> None:
        """The mapping goes with the last tensor that views it."""


class _Events:
    """Opened event handles, destroyed with their holder."""

    def __init__(self, handles: list[int]) -> None:
        self.handles = handles
        self._destroy = _runtime().eventDestroy

    def __del__(self) -> None:
        for event in self.handles:
            self._destroy(event)


class _Mapping:
    """Memory of another process, closed with its holder."""

    def __init__(self, pointer: int, close: Callable[[int], None]) -> None:
        self.pointer = pointer
        self._close = close

    def __del__(self) -> None:
        self._close(self.pointer)


class _Block:
    """A block of GPU memory as torch takes it; every tensor over it keeps it, and it keeps the memory."""

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
