"""Host memory that is shared only by file descriptor: it has no name, and is freed with its last user."""

from __future__ import annotations

import fcntl
import mmap
import os

from robocache_ros.errors import RoboCacheError

SEAL_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # access to mapped memory that has shrunk raises SIGBUS
SEAL_CONTENTS = fcntl.F_SEAL_WRITE  # no process can write, including the creator
SEAL_READERS = 0x10  # F_SEAL_FUTURE_WRITE, Linux 5.1: only existing mappings can write; not in the fcntl module


class IpcUnavailableError(RoboCacheError):
    """Frames cannot be passed through shared memory, for the reason in the text. They still arrive as messages."""


def create(name: str, nbytes: int) -> int:
    """A file descriptor of `nbytes` zeroed bytes of memory, all of them allocated; the size is sealed.

    Raises:
        IpcUnavailableError: there is too little memory, or there are too few file descriptors.
    """
    # If memory is not available, the kernel does not refuse the request but kills processes.
    available = _available_bytes()
    if available is not None and nbytes > available:
        raise _too_little(name, nbytes, f"{available / 2**20:.1f} MiB are available")
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise _too_little(name, nbytes, str(error.strerror)) from None
    try:
        os.posix_fallocate(fd, 0, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEAL_SIZE)
    except OSError as error:
        os.close(fd)
        raise _too_little(name, nbytes, str(error.strerror)) from None
    return fd


def _available_bytes() -> int | None:
    """Bytes of memory that are available; None if the kernel does not report them."""
    try:
        with open("/proc/meminfo", "rb") as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"MemAvailable:")), None)
    except OSError:
        return None


def _too_little(name: str, nbytes: int, why: str) -> IpcUnavailableError:
    return IpcUnavailableError(
        f"{name}: {nbytes / 2**20:.1f} MiB of shared memory are not available ({why}); use fewer slots"
    )


def seal(fd: int, seals: int = 0) -> None:
    """Forbid changes to the memory, and further seals; if the kernel lacks a seal, only the uid check protects it."""
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
    except OSError:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)


def text_fd(name: str, text: str) -> int:
    """A file descriptor with `text` as its contents, which are sealed."""
    data = text.encode()
    fd = create(name, max(len(data), 1))
    os.pwrite(fd, data, 0)
    seal(fd, SEAL_CONTENTS)
    return fd


def read_text_fd(fd: int, limit: int) -> bytes:
    """All bytes behind a peer's descriptor; IpcUnavailableError if they are more than `limit`, or not sealed."""
    size = _sealed_bytes(fd)
    if size > limit:
        raise IpcUnavailableError(f"shared memory: a description of {size} bytes; at most {limit} are read")
    return os.pread(fd, size, 0)


def map_fd(fd: int, nbytes: int, *, writable: bool) -> mmap.mmap:
    """Map the memory behind a descriptor.

    Raises:
        IpcUnavailableError: it is smaller than described, may shrink while it is mapped, or cannot be mapped.
    """
    size = _sealed_bytes(fd)
    if size < nbytes:
        raise IpcUnavailableError(
            f"shared memory: {size} bytes where the description gives {nbytes}; use one version on both sides"
        )
    try:
        return mmap.mmap(fd, nbytes, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    except PermissionError:
        raise
    except (OSError, ValueError, OverflowError) as error:
        raise IpcUnavailableError(
            f"shared memory: {nbytes} bytes cannot be mapped ({error}); free memory, or use fewer slots"
        ) from None


def _sealed_bytes(fd: int) -> int:
    """Bytes behind a descriptor, which cannot shrink."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # not memory but a file, a pipe, a folder
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise IpcUnavailableError("shared memory: its size is not sealed; use one version on both sides")
    return os.fstat(fd).st_size
