"""Messages out of the middleware, into memory of one's own.

rclpy's take hands out a `bytes` object: two copies more than the middleware needs, with the interpreter's lock held all
the while, 2 ms for a camera's frame. So rcl's own function is called where it can be found, through ctypes, which lets
go of the lock; where not, rclpy's.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rclpy.subscription import Subscription

SMALL_BYTES = 65536
_OK, _BAD_ALLOC, _NOTHING_THERE = 0, 10, 401  # RCL_RET_OK, RCL_RET_BAD_ALLOC, RCL_RET_SUBSCRIPTION_TAKE_FAILED
_INFO_WORDS = 32  # rmw_message_info_t begins with source and received time, and is 72 bytes so far


class Taken(NamedTuple):
    """A message as the middleware hands it out."""

    data: bytes | memoryview
    source_ns: int  # when it was published; 0 where the middleware does not say
    received_ns: int  # when it came in; 0 where the middleware does not say


_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_Deallocate = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_Reallocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_ZeroAllocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)


class _Allocator(ctypes.Structure):
    """rcutils_allocator_t."""

    _fields_ = (
        ("allocate", _Allocate),
        ("deallocate", _Deallocate),
        ("reallocate", _Reallocate),
        ("zero_allocate", _ZeroAllocate),
        ("state", ctypes.c_void_p),
    )


class _Array(ctypes.Structure):
    """rcutils_uint8_array_t, with room behind it."""

    _fields_ = (
        ("buffer", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("allocator", _Allocator),
        ("_room", ctypes.c_uint64 * 8),
    )


class _Room:
    """Memory as rcutils takes it, and an allocator for messages that are larger.

    What it is given is neither rcutils' to free nor to grow: where it asks for more, it gets memory of NumPy's.
    """

    def __init__(self) -> None:
        self.larger: NDArray[np.uint8] | None = None  # what the last message needed, where its room was too small
        self._capacity = 0
        self._functions = _Allocator(
            _Allocate(lambda nbytes, state: self._grow(0, nbytes)),
            _Deallocate(lambda pointer, state: None),
            _Reallocate(lambda pointer, nbytes, state: self._grow(pointer, nbytes)),
            _ZeroAllocate(lambda count, nbytes, state: self._grow(0, count * nbytes)),
        )
        self.array = _Array(allocator=self._functions)
        self.pointer = ctypes.addressof(self.array)

    def use(self, address: int, capacity: int) -> None:
        """The next message goes there."""
        array = self.array
        array.buffer, array.length, array.capacity = address, 0, capacity
        self._capacity = capacity
        self.larger = None

    def _grow(self, pointer: int | None, nbytes: int) -> int:
        if pointer and self.larger is None and nbytes <= self._capacity:  # some middlewares fit it to each message
            return pointer
        self.larger = np.empty(nbytes, np.uint8)
        return int(self.larger.ctypes.data)


class Taker:
    """Takes serialized messages of raw subscriptions; for one thread.

    Args:
        direct: call rcl's own function where it is found.
    """

    def __init__(self, *, direct: bool = True) -> None:
        self._rcl_take = _rcl_take() if direct else None
        self._room = _Room()
        self._info = (ctypes.c_int64 * _INFO_WORDS)()
        self._small = np.empty(SMALL_BYTES, np.uint8)
        self._small_at = int(self._small.ctypes.data)
        self._arguments = (ctypes.c_void_p(self._room.pointer), self._info, None)

    @property
    def direct(self) -> bool:
        """Whether rclpy's take is gone round."""
        return self._rcl_take is not None

    def take(self, subscription: Subscription[Any]) -> Taken | None:
        """The next message, None if there is none."""
        if self._rcl_take is None:
            return _take_by_rclpy(subscription)
        length = self._take(subscription, self._small_at, SMALL_BYTES)
        if length is None:
            return None
        larger = self._room.larger
        data = ctypes.string_at(self._small_at, length) if larger is None else larger.data.toreadonly()[:length]
        return Taken(data, self._info[0], self._info[1])

    def take_into(self, subscription: Subscription[Any], room: NDArray[np.uint8]) -> Taken | None:
        """The next message, in `room`, or in memory of its own where it is larger; None if there is none."""
        if self._rcl_take is None:
            return _take_by_rclpy(subscription)
        length = self._take(subscription, int(room.ctypes.data), room.nbytes)
        if length is None:
            return None
        larger = self._room.larger
        data = (room if larger is None else larger).data.toreadonly()[:length]
        return Taken(data, self._info[0], self._info[1])

    def _take(self, subscription: Subscription[Any], address: int, capacity: int) -> int | None:
        self._room.use(address, capacity)
        handle = subscription.handle
        with handle:
            result = self._rcl_take(handle.pointer, *self._arguments)  # type: ignore[misc]
        if result == _OK:
            return int(self._room.array.length)
        if result == _NOTHING_THERE:
            return None
        ctypes.CDLL("librcutils.so").rcutils_reset_error()
        if result == _BAD_ALLOC:
            raise MemoryError(f"{subscription.topic_name}: no memory for a message")
        raise RuntimeError(f"{subscription.topic_name}: a message could not be taken (rcl: {result})")


def _take_by_rclpy(subscription: Subscription[Any]) -> Taken | None:
    with subscription.handle:
        taken: Any = subscription.handle.take_message(subscription.msg_type, True)
    if taken is None:
        return None
    data, info = taken
    return Taken(data, info["source_timestamp"], info["received_timestamp"])


@cache
def _rcl_take() -> Any:
    """rcl_take_serialized_message of the rcl that rclpy has loaded; None where it, or what it is given, is another."""
    from rclpy.impl.implementation_singleton import rclpy_implementation

    try:
        found = ctypes.CDLL("librcl.so").rcl_take_serialized_message
        rcutils = ctypes.CDLL("librcutils.so")
        if not hasattr(rclpy_implementation.Subscription, "pointer") or not _is_as_declared(rcutils):
            return None
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    found.restype = ctypes.c_int
    return found


def _is_as_declared(rcutils: Any) -> bool:
    """Whether rcutils' own functions see in our structures what we put there."""
    room = _Room()
    room.use(0, 0)
    made = rcutils.rcutils_uint8_array_init(
        ctypes.c_void_p(room.pointer), ctypes.c_size_t(16), ctypes.byref(room.array.allocator)
    )
    first = room.larger
    if made or first is None or (room.array.buffer, room.array.capacity) != (first.ctypes.data, 16):
        return False
    grown = rcutils.rcutils_uint8_array_resize(ctypes.c_void_p(room.pointer), ctypes.c_size_t(64))
    second = room.larger
    if grown or second is first or second is None:
        return False
    return (room.array.buffer, room.array.length, room.array.capacity) == (second.ctypes.data, 0, 64)
