"""Takes serialized messages from the middleware into memory of the caller.

rclpy's take returns a `bytes` object: it makes two unnecessary copies and holds the interpreter's lock meanwhile, 2 ms
for a camera image. Therefore rcl's function is called through ctypes, which releases the lock. If it is not found,
rclpy's function is called.
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
_INFO_WORDS = 32  # more than rmw_message_info_t needs, which starts with source and received time and has 72 bytes


class ReceivedMessage(NamedTuple):
    """A serialized message with the middleware's times."""

    data: bytes | memoryview
    source_ns: int  # time of publication; 0 if the middleware does not provide it
    received_ns: int  # time of reception; 0 if the middleware does not provide it


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
    """rcutils_uint8_array_t, followed by space for later versions of it."""

    _fields_ = (
        ("buffer", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("allocator", _Allocator),
        ("_space", ctypes.c_uint64 * 8),
    )


class _Target:
    """The memory for a message as rcutils expects it, with an allocator for larger messages.

    rcutils does not free or grow the caller's memory: if it requests more, it gets the memory of a NumPy array.
    """

    def __init__(self) -> None:
        self.larger: NDArray[np.uint8] | None = None  # the last message, if the caller's memory was too small
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
        """Set the memory for the next message."""
        array = self.array
        array.buffer, array.length, array.capacity = address, 0, capacity
        self._capacity = capacity
        self.larger = None

    def _grow(self, pointer: int | None, nbytes: int) -> int:
        if pointer and self.larger is None and nbytes <= self._capacity:  # some middlewares resize it for each message
            return pointer
        try:
            self.larger = np.empty(nbytes, np.uint8)
        except MemoryError:
            return 0  # rcutils reports the error
        return int(self.larger.ctypes.data)


class RawSubscriber:
    """Takes serialized messages of raw subscriptions; for one thread.

    Args:
        direct: call rcl's function if it is found.
    """

    def __init__(self, *, direct: bool = True) -> None:
        self._rcl_take = find_rcl_take() if direct else None
        self._target = _Target()
        self._info = (ctypes.c_int64 * _INFO_WORDS)()
        self._small = np.empty(SMALL_BYTES, np.uint8)
        self._small_at = int(self._small.ctypes.data)
        self._arguments = (ctypes.c_void_p(self._target.pointer), self._info, None)

    @property
    def direct(self) -> bool:
        """Whether rcl's function is called instead of rclpy's."""
        return self._rcl_take is not None

    def take(self, subscription: Subscription[Any]) -> ReceivedMessage | None:
        """The next message; None if there is none."""
        if self._rcl_take is None:
            return _take_by_rclpy(subscription)
        length = self._take(subscription, self._small_at, SMALL_BYTES)
        if length is None:
            return None
        larger = self._target.larger
        data = ctypes.string_at(self._small_at, length) if larger is None else larger.data.toreadonly()[:length]
        return ReceivedMessage(data, self._info[0], self._info[1])

    def take_into(self, subscription: Subscription[Any], buffer: NDArray[np.uint8]) -> ReceivedMessage | None:
        """The next message, in `buffer`, or in new memory if it is larger; None if there is none."""
        if self._rcl_take is None:
            return _take_by_rclpy(subscription)
        length = self._take(subscription, int(buffer.ctypes.data), buffer.nbytes)
        if length is None:
            return None
        larger = self._target.larger
        data = (buffer if larger is None else larger).data.toreadonly()[:length]
        return ReceivedMessage(data, self._info[0], self._info[1])

    def _take(self, subscription: Subscription[Any], address: int, capacity: int) -> int | None:
        self._target.use(address, capacity)
        handle = subscription.handle
        with handle:
            result = self._rcl_take(handle.pointer, *self._arguments)  # type: ignore[misc]
        if result == _OK:
            return int(self._target.array.length)
        if result == _NOTHING_THERE:
            return None
        ctypes.CDLL("librcutils.so").rcutils_reset_error()
        if result == _BAD_ALLOC:
            raise MemoryError(f"{subscription.topic_name}: no memory for a message")
        raise RuntimeError(f"{subscription.topic_name}: rcl could not take a message (error {result})")


def _take_by_rclpy(subscription: Subscription[Any]) -> ReceivedMessage | None:
    with subscription.handle:
        received: Any = subscription.handle.take_message(subscription.msg_type, True)
    if received is None:
        return None
    data, info = received
    return ReceivedMessage(data, info["source_timestamp"], info["received_timestamp"])


@cache
def find_rcl_take() -> Any:
    """rcl_take_serialized_message of the rcl that rclpy has loaded; None if it is missing or its structures differ."""
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
    """Whether the functions of rcutils read the structures declared here as they are written."""
    target = _Target()
    target.use(0, 0)
    made = rcutils.rcutils_uint8_array_init(
        ctypes.c_void_p(target.pointer), ctypes.c_size_t(16), ctypes.byref(target.array.allocator)
    )
    first = target.larger
    if made or first is None or (target.array.buffer, target.array.capacity) != (first.ctypes.data, 16):
        return False
    grown = rcutils.rcutils_uint8_array_resize(ctypes.c_void_p(target.pointer), ctypes.c_size_t(64))
    second = target.larger
    if grown or second is first or second is None:
        return False
    return (target.array.buffer, target.array.length, target.array.capacity) == (second.ctypes.data, 0, 64)
