"""A foot pedal without hardware: evdev reads its events from a pipe, as the kernel writes them."""

from __future__ import annotations

import errno
import os
import struct
from typing import Any

import evdev
from evdev import ecodes

EVENT = struct.Struct("llHHi")  # struct input_event
KEYS = ("KEY_A", "KEY_B", "KEY_C")


class Device(evdev.InputDevice):
    """A device of a `Plug`."""

    def __init__(self, plug: Plug) -> None:
        self._plug = plug
        self.fd, self._input = os.pipe()
        os.set_blocking(self.fd, False)
        plug.input = self._input

    def capabilities(self, *_: Any, **__: Any) -> dict[Any, Any]:
        return {ecodes.EV_KEY: [ecodes.ecodes[name] for name in KEYS]}

    def read(self) -> Any:
        if not self._plug.is_in:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return super().read()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            os.close(self._input)
            self.fd = -1

    def __del__(self) -> None:
        self.close()


class Plug:
    """Where a pedal is plugged in; replaces `evdev.InputDevice`."""

    def __init__(self) -> None:
        self.is_in = True
        self.input = -1
        self.error = errno.ENOENT  # of opening it while it is out
        self.opened = 0

    def __call__(self, path: str) -> Device:
        if not self.is_in:
            raise OSError(self.error, os.strerror(self.error))
        device = Device(self)
        self.opened += 1  # now there is an input to send to
        return device

    def send(self, key: str, *values: int) -> None:
        """Send values of a key: 1 pressed, 2 repeated, 0 released."""
        for value in values:
            events = ((ecodes.EV_MSC, 4, 7), (ecodes.EV_KEY, ecodes.ecodes[key], value), (ecodes.EV_SYN, 0, 0))
            os.write(self.input, b"".join(EVENT.pack(12, 345, *event) for event in events))

    def pull(self) -> None:
        """Unplug it."""
        self.is_in = False
        os.write(self.input, bytes(EVENT.size))  # wakes who waits, as the kernel does
