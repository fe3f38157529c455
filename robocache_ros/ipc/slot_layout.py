"""The fields of a slot and their offsets: the description that the writer sends to every reader."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError, printable

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
