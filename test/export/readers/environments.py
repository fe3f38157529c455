"""The real dataset readers: a folder here for each, with what `make readers-env` installs in its own environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., Any])
ROOT = Path(__file__).parents[3]


def variable(name: str) -> str:
    """The environment variable that names another Python than the one of `make <name>-env`."""
    return f"ROBOCACHE_{name.upper().replace('-', '_')}_PYTHON"


def program(name: str, executable: str = "python") -> Path:
    """An executable of the environment `name`, which may not exist."""
    python = Path(os.environ.get(variable(name)) or ROOT / f".venv-{name}" / "bin" / "python")
    return python.absolute().with_name(executable)


def needs(*names: str) -> list[pytest.MarkDecorator]:
    """The `pytestmark` of tests with real readers. A missing one fails them if ROBOCACHE_REQUIRE_READERS is set."""
    missing = [name for name in names if shutil.which(program(name)) is None]
    reason = f"needs the readers {', '.join(missing)}: make readers-env, or set {', '.join(map(variable, missing))}"
    skipped = bool(missing) and not os.environ.get("ROBOCACHE_REQUIRE_READERS")
    return [pytest.mark.reader, pytest.mark.skipif(skipped, reason=reason)]


def reads(*names: str) -> Callable[[F], F]:
    """`needs` of one test, as a decorator."""

    def marked(test: F) -> F:
        for mark in needs(*names):
            test = mark(test)
        return test

    return marked


def ffmpeg(name: str, home: Path) -> dict[str, str]:
    """The variables with which torchcodec finds the FFmpeg of PyAV's wheel; `home` gets links with the usual names.

    No other FFmpeg needs to be installed, and the same one decodes on every machine.
    """
    libraries = next(program(name).parents[1].glob("lib/python*/site-packages/av.libs"))
    links = home / "ffmpeg"
    links.mkdir(parents=True, exist_ok=True)
    for file in (*libraries.glob("libav*.so.*"), *libraries.glob("libsw*.so.*")):  # libavcodec-<hash>.so.61.19.101
        base, _, version = file.name.partition(".so.")
        link = links / f"{base.rpartition('-')[0]}.so.{version.partition('.')[0]}"
        if not link.is_symlink():
            link.symlink_to(file)
    return {"LD_LIBRARY_PATH": f"{links}:{libraries}"}


def probe(name: str, home: Path, *arguments: object, script: str = "probe.py", **environment: str) -> dict[str, Any]:
    """Run `<name>/<script>` under the Python of the reader; the JSON of its last line of output.

    Large arrays come back in files below `home`, which is also the home and the working folder of the reader.
    """
    command = [str(program(name)), str(Path(__file__).parent / name / script), *map(str, arguments)]
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(home), "OMP_NUM_THREADS": "1", **environment}
    home.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=home, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    reported: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return reported
