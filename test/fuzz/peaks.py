"""By how much a process of its own grows at work on a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# The peak of each step: Linux counts it anew after a write to clear_refs.
MEASURE = """
import json, re, sys
from pathlib import Path
from robocache_ros.errors import RoboCacheError
def status(name):
    return int(re.search(name + r":\\s*(\\d+) kB", open("/proc/self/status").read())[1])
def measured(path):
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    try:
        found = work(Path(path))
    except RoboCacheError as error:
        found = str(error)
    return status("VmHWM") - before, found
print(json.dumps([measured(path) for path in sys.argv[1:]]))
"""


def peaks(work: str, *paths: Path) -> list[tuple[int, Any]]:
    """KiB by which a process grows over each path in turn, and what it found there or the text of an error.

    `work` is code that defines a function `work` of a path, whose result can be written as JSON.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", work + MEASURE, *map(str, paths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [(grown, found) for grown, found in json.loads(done.stdout)]
