"""Finds the files that ship with the Python modules: CUDA kernels, configuration and launch files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from robocache_ros.errors import RoboCacheError


@cache
def _home() -> Path:
    # A checkout has the folders next to the package, also in an editable or symlink install. pip and colcon put them in
    # share/ of the prefix that contains site-packages.
    package = Path(__file__).resolve().parent
    above = [*package.parents][:5]
    for home in (package.parent, *(prefix / "share" / package.name for prefix in above)):
        if (home / "package.xml").is_file():
            return home
    raise RoboCacheError(
        f"{package}: its share/{package.name} folder was not found in {', '.join(map(str, above))}; "
        f"install the package again with pip or colcon"
    )


def resource(*parts: str) -> Path:
    """The path of a shipped file or folder, such as `resource("config", "panda.yaml")`.

    Args:
        parts: `kernels`, `config` or `launch`, and the path below it.

    Raises:
        RoboCacheError: the file or folder does not exist; the message lists its siblings.
    """
    path = _home().joinpath(*parts)
    if not path.exists():
        there = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        raise RoboCacheError(f"{path}: no such file or folder; choose from {', '.join(there) or 'none'}")
    return path
