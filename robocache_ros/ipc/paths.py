"""The path of a node's socket, in a folder that only its user can enter."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path

from robocache_ros.ipc.shared_memory import IpcUnavailableError

LONGEST = 100  # bytes of a socket's path; Linux allows 107


def runtime_folder() -> Path:
    """$XDG_RUNTIME_DIR/robocache, or else a private folder in the temporary folder; created if needed.

    Raises:
        IpcUnavailableError: the folder cannot be created, is a link, belongs to another user, or others may enter it.
    """
    named = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(named) / "robocache" if named else Path(tempfile.gettempdir()) / f"robocache-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise IpcUnavailableError(f"{folder}: cannot be created ({error.strerror}); set XDG_RUNTIME_DIR") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise IpcUnavailableError(
            f"{folder}: is not a folder of this user alone (mode 0700); remove it, or set XDG_RUNTIME_DIR"
        )
    return folder


def socket_path(node: str, domain: int | str | None = None) -> Path:
    """The path of a node's socket, the same for the node and for its consumers.

    Args:
        node: fully qualified name, such as `/robot/fusion_node`.
        domain: ROS domain; None: $ROS_DOMAIN_ID, else 0.

    Raises:
        IpcUnavailableError: there is no folder that only this user can enter, or the path is too long for a socket.
    """
    domain = os.environ.get("ROS_DOMAIN_ID") or 0 if domain is None else domain
    folder = runtime_folder()
    name = re.sub(r"[^A-Za-z0-9_]", ".", f"{domain}{node}")
    if len(os.fsencode(folder)) + len(name) + 6 > LONGEST:
        name = hashlib.sha256(f"{domain}{node}".encode()).hexdigest()[:20]
    path = folder / f"{name}.sock"
    if len(os.fsencode(path)) > LONGEST:
        raise IpcUnavailableError(f"{path}: is too long for a socket; set XDG_RUNTIME_DIR to a shorter folder")
    return path
