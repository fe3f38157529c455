"""Runs the scripts of this folder under the Python of the real writers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from test.export.readers.environments import program


def write(environment: str, script: str, home: Path, *arguments: object, **variables: str) -> Any:
    """Run `<script>/write.py` under an environment; the JSON of the last line of its output, None where it is not JSON.

    `home` is its home and its working folder.
    """
    command = [str(program(environment)), str(Path(__file__).parent / script / "write.py"), *map(str, arguments)]
    around = {"PATH": "/usr/bin:/bin", "HOME": str(home), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=around, cwd=home, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    last = done.stdout.splitlines()[-1:]
    return json.loads(last[0]) if last and last[0].startswith("{") else None
