"""Ctrl-C in an export with several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import BAG, ROOT, SPEC

# Exports, and sends Ctrl-C to the process group when the first recording has advanced.
EXPORT = """
import os, signal, sys
from robocache_ros.cli.commands import main
from robocache_ros.cli.output import progress_display
from robocache_ros.export.pieces.progress import {event}

class Interrupting(progress_display.Lines):
    def __call__(self, event):
        super().__call__(event)
        if isinstance(event, {event}):
            os.killpg(os.getpgid(0), signal.SIGINT)

progress_display.Lines = Interrupting
if __name__ == "__main__":
    main(sys.argv[1:])
"""


@pytest.mark.parametrize(("event", "kept"), [("Advanced", 0), ("Converted", 1)])
def test_ctrl_c_is_one_line_that_says_how_to_go_on(tmp_path: Path, event: str, kept: int) -> None:
    manifest, out = tmp_path / "lifts.csv", tmp_path / "set"
    manifest.write_text(f"recording,from,to\n{BAG},0,8.5\n{BAG},8.5,\n")
    program = tmp_path / "program.py"
    program.write_text(EXPORT.format(event=event))
    command = [sys.executable, str(program), "export", "--manifest", str(manifest), "-s", SPEC, "-o", str(out)]
    done = subprocess.run(
        [*command, "--jobs", "2", "--media", "none"],
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's jobs may ignore it
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (130, "")
    (line,) = done.stderr.splitlines()
    if kept:
        assert line.startswith("robocache: stopped; 1 converted recordings are kept in ")
        assert line.endswith(": run the same command again")
    else:
        assert line == "robocache: stopped; nothing is kept: run the same command to start again"
        assert not out.exists()
