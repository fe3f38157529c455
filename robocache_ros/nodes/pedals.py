"""Foot pedals, and other devices that send keys, read with evdev (Linux)."""

from __future__ import annotations

import errno
import logging
import select
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need

log = logging.getLogger(__name__)

POLL_S = 0.2  # until the thread looks for its end again
AGAIN_S = 1.0  # until a device that was unplugged is looked for again
MAX_ACTIONS = 100


def read_keys(text: str, actions: Collection[str]) -> dict[str, str]:
    """Return the actions by the names of their keys, from a text such as `start=KEY_A,success=KEY_B`.

    Raises:
        RoboCacheError: an entry is not an action and a key.
    """
    known = need("evdev.ecodes", "pedals").ecodes
    found: dict[str, str] = {}
    for entry in text.split(",")[:MAX_ACTIONS]:
        action, _, name = (part.strip() for part in entry.partition("="))
        if action not in actions or name not in known or not name.startswith(("KEY_", "BTN_")):
            raise RoboCacheError(
                f"parameter pedal_keys: '{printable(entry.strip(), 40)}' is not <action>=<key>, such as "
                f"{next(iter(actions))}=KEY_A; the actions are {', '.join(actions)}"
            )
        found[name] = action
    return found


class Pedal:
    """Calls a function, in a thread, when a key of a device is pressed or released.

    A device that is unplugged is looked for until it is back. Keys that repeat while they are held count once.

    Args:
        device: such as `/dev/input/by-id/usb-…-event-kbd`, whose name stays when it is plugged in again.
        keys: action by name of the key.
        changed: is called with an action, and whether its key was pressed or released.
        lost: is called when the device is unplugged.

    Raises:
        RoboCacheError: the device does not exist, may not be read, or does not have the keys.
    """

    def __init__(
        self,
        device: str,
        keys: Mapping[str, str],
        changed: Callable[[str, bool], None],
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._path, self._changed, self._lost = device, changed, lost
        self._where = f"parameter pedal: {printable(device, 60)}"
        self._evdev = need("evdev", "pedals")
        self._actions = {self._evdev.ecodes.ecodes[name]: action for name, action in keys.items()}
        self._device: Any = self._open()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="robocache-pedal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close the device."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _open(self) -> Any:
        try:
            device = self._evdev.InputDevice(self._path)
        except OSError as error:
            hint = "the devices are in /dev/input/by-id"
            if error.errno in (errno.EACCES, errno.EPERM):
                hint = "add yourself to the group input (sudo usermod -aG input $USER), and log in again"
            raise RoboCacheError(f"{self._where}: cannot be opened ({error.strerror}); {hint}") from None
        has = device.capabilities().get(self._evdev.ecodes.EV_KEY, [])
        missing = [code for code in self._actions if code not in has]
        if missing:
            names = [self._evdev.ecodes.bytype[self._evdev.ecodes.EV_KEY].get(code, code) for code in (missing[0],)]
            device.close()
            raise RoboCacheError(f"{self._where}: has no {printable(names[0], 30)}; change pedal_keys, or the device")
        return device

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._read()
            except OSError as error:
                log.warning("%s: unplugged (%s); it is used again when it is back", self._where, error.strerror)
                self._call(self._lost)
                self._close_device()
                self._reopen()
        self._close_device()

    def _read(self) -> None:
        """Handle the events of the device until the end; OSError when it is unplugged."""
        while not self._stopped.is_set():
            if not select.select([self._device.fd], [], [], POLL_S)[0]:
                continue
            for event in self._device.read():
                action = self._actions.get(event.code) if event.type == self._evdev.ecodes.EV_KEY else None
                if action is not None and event.value in (0, 1):  # 2: it repeats
                    self._call(self._changed, action, bool(event.value))

    def _reopen(self) -> None:
        while not self._stopped.wait(AGAIN_S):
            with suppress(RoboCacheError):  # it is not back, or its permissions are not set yet
                self._device = self._open()
                log.info("%s: is back", self._where)
                return

    def _close_device(self) -> None:
        with suppress(OSError):
            self._device.close()

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:  # the pedal works on
            log.error("%s: %s", self._where, printable(repr(error), 100))
