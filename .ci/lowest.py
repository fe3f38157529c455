"""Print the lowest version of each dependency that setup.py declares, as requirements for pip.

Every `name>=version` of the base installation and of the extras that run without ROS and without a GPU becomes
`name==version`. torch is the exception: the oldest supported release has no small build on PyPI, so the version of the
environment variable TORCH is used.
"""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import setuptools

EXTRAS = ("bags", "export", "hdf5", "cli", "test")
NOT_NEEDED = ("nvidia-", "setuptools", "wheel", "colcon")  # build tools, and the compiler of the CUDA tests


def declared() -> dict:
    """The arguments of `setup()`."""
    found: dict = {}
    setuptools.setup = found.update
    runpy.run_path(str(Path(__file__).resolve().parents[1] / "setup.py"))
    return found


def lowest(arguments: dict) -> list[str]:
    """`name==version` of each dependency, once."""
    lines = {}
    for requirement in (*arguments["install_requires"], *(r for e in EXTRAS for r in arguments["extras_require"][e])):
        if requirement.startswith(NOT_NEEDED):
            continue
        match = re.match(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", requirement)
        if match is None:
            raise SystemExit(f"setup.py: {requirement} has no lower bound; add one that the tests pass with")
        lines[match[1].lower()] = f"{match[1]}=={match[2]}"
    lines["torch"] = os.environ.get("TORCH", "torch==2.13.0")
    return list(lines.values())


if __name__ == "__main__":
    print(*lowest(declared()), sep="\n")  # noqa: T201 - its output
