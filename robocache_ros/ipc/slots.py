"""The slots of a ring: their layout, their table of states, and their memory on the CPU or a GPU."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ipc import shared_memory
from robocache_ros.ipc.shared_memory import IpcUnavailableError

PROTOCOL = 1
MAX_DIMENSIONS = 16
MAX_FIELDS = 1024
MAX_NAME = 256
MAX_BYTES = 2**62  # maximum size of a field; larger sizes do not fit int64 offsets
ALIGNMENT = 256  # the alignment of cudaMalloc, at which a view of any dtype may start
DTYPES = {
    name: getattr(torch, name)
    for name in ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
}


@dataclass(frozen=True)
class Field:
    """One array of a frame.

    `host` fields are in host memory on every device and are copied when a slot is leased. They are small, such as
    `valid`, and a consumer reads them before it uses the GPU.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    host: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        if not isinstance(self.name, str) or len(self.name) > MAX_NAME:
            raise RoboCacheError(
                f"{printable(self.name)}: is not a name of up to {MAX_NAME} characters; give a shorter one"
            )
        if self.dtype not in DTYPES:
            raise RoboCacheError(
                f"{printable(self.name)}: dtype {printable(repr(self.dtype))} is not one of {', '.join(DTYPES)}"
            )
        if self.host and self.dtype == "bfloat16":
            raise RoboCacheError(f"{self.name}: bfloat16 is for GPU rings only; a field on the host is a NumPy array")
        if any(not isinstance(size, int) or size < 0 for size in self.shape):
            raise RoboCacheError(
                f"{self.name}: shape {printable(list(self.shape))} has sizes other than integers >= 0; correct it"
            )
        if len(self.shape) > MAX_DIMENSIONS or math.prod(max(n, 1) for n in self.shape) > MAX_BYTES // 8:
            raise RoboCacheError(
                f"{self.name}: shape {printable(list(self.shape))} is too large for memory; give a smaller one"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the array, contiguous."""
        itemsize: int = DTYPES[self.dtype].itemsize
        return math.prod(self.shape) * itemsize


def _place(fields: Sequence[Field]) -> tuple[dict[str, int], int]:
    """Offset of each field in a slot, and the bytes of a slot; all are multiples of ALIGNMENT."""
    offsets, end = {}, 0
    for field in fields:
        offsets[field.name] = end
        end += -(-field.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


@dataclass(frozen=True)
class RingLayout:
    """K slots of one frame each.

    Args:
        fields: the arrays of a frame.
        slots: K, at least 2: one is read while the next is written.
        device: `cpu` or `cuda`: the memory of the fields that are not `host`.
        meta: text that is passed on unchanged; the node uses it for the JSON of its columns.
    """

    fields: tuple[Field, ...]
    slots: int
    device: str
    meta: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))
        names = [field.name for field in self.fields]
        if not 1 <= len(names) <= MAX_FIELDS:
            raise RoboCacheError(f"fields: there are {len(names)}; give 1 to {MAX_FIELDS}")
        if len(set(names)) != len(names):
            raise RoboCacheError(f"fields: {printable(names)} has a name twice; give each once")
        if not isinstance(self.slots, int) or not 2 <= self.slots <= 1024:
            raise RoboCacheError(
                f"slots: {printable(self.slots)} is not in 2..1024; one is read while the next is written"
            )
        if self.device not in ("cpu", "cuda"):
            raise RoboCacheError(f"device: {printable(repr(self.device))} is not one of cpu, cuda")
        if not isinstance(self.meta, str):
            raise RoboCacheError("meta: is not text; give a str")

    @cached_property
    def shared(self) -> dict[str, Field]:
        """The fields that are in the ring itself, by name."""
        return {field.name: field for field in self.fields if not field.host}

    @cached_property
    def host(self) -> dict[str, Field]:
        """The fields that are in host memory on every device, by name."""
        return {field.name: field for field in self.fields if field.host}

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Offset in bytes of each field within its slot."""
        return {**_place([*self.shared.values()])[0], **_place([*self.host.values()])[0]}

    @cached_property
    def places(self) -> tuple[tuple[str, torch.dtype, tuple[int, ...], tuple[int, ...], int], ...]:
        """Of each field in the ring: name, dtype, shape, strides, and its offset in a slot, in elements."""
        found = []
        for field in self.shared.values():
            dtype = DTYPES[field.dtype]
            strides = torch.empty(field.shape, dtype=dtype, device="meta").stride()
            found.append((field.name, dtype, field.shape, strides, self.offsets[field.name] // dtype.itemsize))
        return tuple(found)

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes of a slot in the ring."""
        return _place([*self.shared.values()])[1]

    @cached_property
    def host_bytes(self) -> int:
        """Bytes of a slot's fields in host memory."""
        return _place([*self.host.values()])[1]

    @property
    def ring_bytes(self) -> int:
        """Bytes of the ring; never 0, because an empty mapping is not possible."""
        return max(self.slots * self.slot_bytes, ALIGNMENT)

    def to_json(self) -> str:
        """The JSON that `from_json` reads."""
        return json.dumps({"protocol": PROTOCOL, **asdict(self)})

    @classmethod
    def from_json(cls, text: str | bytes) -> RingLayout:
        """Parse a description; RoboCacheError if it is of another protocol or invalid."""
        try:
            raw: dict[str, Any] = json.loads(text)
            protocol = raw.pop("protocol")
            if protocol != PROTOCOL:
                raise RoboCacheError(
                    f"protocol: {printable(repr(protocol))}, this side speaks {PROTOCOL}; use one version on both sides"
                )
            raw["fields"] = tuple(Field(**field) for field in raw["fields"])
            return cls(**raw)
        except RoboCacheError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise RoboCacheError(f"ring description: cannot be read ({printable(repr(error))})") from None


def slot_views(layout: RingLayout, block: Tensor) -> dict[str, Tensor]:
    """The tensors of a slot, as views of its bytes."""
    views = {}
    typed: dict[torch.dtype, Tensor] = {}
    for name, dtype, shape, strides, at in layout.places:
        elements = typed.get(dtype)
        if elements is None:
            elements = typed[dtype] = block.view(dtype)
        views[name] = elements.as_strided(shape, strides, elements.storage_offset() + at)
    return views


# A slot's line: sequence number (odd while it is being written, 0 before the first write), tick_ns, published_ns.
LINE = 8  # in words of 8 bytes: one cache line per slot
SEQUENCE, TICK, PUBLISHED = 0, 1, 2


def table_bytes(layout: RingLayout) -> int:
    """Bytes of the table and of the host fields behind it."""
    return _lines_bytes(layout) + layout.slots * layout.host_bytes


def _lines_bytes(layout: RingLayout) -> int:
    return -(-layout.slots * LINE * 8 // ALIGNMENT) * ALIGNMENT


class Table:
    """The slot table for one of the sides.

    Reads and writes of a word are atomic (aligned, 8 bytes). After a reader has received an announcement, it sees all
    that was written before the announcement was sent: the packet passes through a kernel lock on both sides.
    """

    def __init__(self, memory: mmap.mmap, layout: RingLayout) -> None:
        self._words = memoryview(memory)[: layout.slots * LINE * 8].cast("q")
        base = _lines_bytes(layout)
        self.host: list[dict[str, NDArray[np.generic]]] = [
            {
                name: np.frombuffer(
                    memory,
                    torch.zeros(0, dtype=DTYPES[field.dtype]).numpy().dtype,
                    field.nbytes // DTYPES[field.dtype].itemsize,
                    base + slot * layout.host_bytes + layout.offsets[name],
                ).reshape(field.shape)
                for name, field in layout.host.items()
            }
            for slot in range(layout.slots)
        ]
        self._slots = range(layout.slots)

    def sequence(self, slot: int) -> int:
        """Sequence number of a slot: even and rising with each tick; odd while it is being written."""
        return self._words[slot * LINE]

    def tick_ns(self, slot: int) -> int:
        """Tick of the slot's frame."""
        return self._words[slot * LINE + TICK]

    def published_ns(self, slot: int) -> int:
        """Wall time at which the slot was announced."""
        return self._words[slot * LINE + PUBLISHED]

    def begin(self, slot: int, sequence: int) -> None:
        """Mark a slot as being written."""
        self._words[slot * LINE] = sequence - 1

    def commit(self, slot: int, sequence: int, tick_ns: int, published_ns: int) -> None:
        """Announce a slot: the sequence number is written last."""
        at = slot * LINE
        self._words[at + TICK] = tick_ns
        self._words[at + PUBLISHED] = published_ns
        self._words[at] = sequence

    def abandon(self, slot: int, sequence: int) -> None:
        """Restore the sequence number of a slot that was not written to."""
        self._words[slot * LINE] = sequence

    def newest(self) -> tuple[int, int]:
        """(slot, sequence) of the newest complete slot; sequence 0 if there is none."""
        return max(
            ((s, n) for s in self._slots if (n := self._words[s * LINE]) % 2 == 0), key=lambda e: e[1], default=(0, 0)
        )


class Ring(Protocol):
    """The slots' memory for one of the sides, on any device."""

    tensor: Tensor  # (bytes,) uint8

    def block(self, start: int, nbytes: int) -> tuple[object, Tensor]:
        """Reader: (nbytes,) uint8, and an object that exists until the tensors that view them are deleted."""

    def copy(self, target: Tensor, value: Tensor) -> None:
        """Writer: copy a value into a view of the ring, in the order of the current stream."""

    def record(self, slot: int) -> None:
        """Writer: record that the slot is complete after the work launched so far; readers wait for this."""

    def wait(self, slot: int) -> None:
        """Reader: make work that is launched later run after the slot was written; the host does not wait."""

    def fence(self) -> Callable[[], bool] | None:
        """Reader: a function that returns whether all work launched so far is complete; None if it is already."""

    def describe(self) -> dict[str, Any]:
        """The values with which the other side maps it."""

    def close(self) -> None:
        """Free the memory."""


class _HostRing:
    """A ring in the memory behind a descriptor, which the caller still owns; see `Ring`.

    Every store is complete when its call returns, so no ordering is needed. The memory is unmapped with the last tensor
    that views it.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._map: mmap.mmap = shared_memory.map_fd(fd, nbytes, writable=True)
        self.tensor = torch.from_numpy(np.frombuffer(self._map, np.uint8))

    def block(self, start: int, nbytes: int) -> tuple[object, Tensor]:
        owner = np.frombuffer(self._map, np.uint8, nbytes, start)
        return owner, torch.from_numpy(owner)

    def copy(self, target: Tensor, value: Tensor) -> None:
        target.copy_(value)

    def record(self, slot: int) -> None: ...

    def wait(self, slot: int) -> None: ...

    def fence(self) -> None: ...

    def describe(self) -> dict[str, Any]:
        return {}  # the descriptor is sent separately

    def close(self) -> None: ...


def make_ring(layout: RingLayout, device: torch.device) -> tuple[Ring, tuple[int, ...]]:
    """Writer: the slots' memory, and its descriptor if it has one."""
    if device.type == "cpu":
        fd = shared_memory.create("robocache-ring", layout.ring_bytes)
        shared_memory.seal(fd)
        return _HostRing(fd, layout.ring_bytes), (fd,)
    from robocache_ros.ops.cuda.shared_ring import SharedRing

    index = torch.cuda.current_device() if device.index is None else device.index
    return SharedRing(layout.ring_bytes, layout.slots, index), ()


def map_ring(layout: RingLayout, place: bytes, fds: Sequence[int]) -> Ring:
    """Reader: the memory that a writer created, from its description or its descriptor."""
    if layout.device == "cpu":
        if not fds:
            raise IpcUnavailableError("ring: its file descriptor is missing; use one version on both sides")
        return _HostRing(fds[0], layout.ring_bytes)
    from robocache_ros.ops.cuda.shared_ring import MappedRing

    return MappedRing(json.loads(place), layout.ring_bytes)
