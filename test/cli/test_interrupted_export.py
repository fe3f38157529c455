"""Ctrl-C in an export with several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from test.cli.conftest import BAG, ROOT, SPEC

PROGRAM = ROOT / "test" / "export" / "pieces" / "interrupted_export.py"


@pytest.mark.parametrize(("event", "kept"), [("Advanced", 0), ("Converted", 1)])
def test_ctrl_c_is_one_line_that_says_how_to_go_on(tmp_path: Path, event: str, kept: int) -> None:
    manifest, out = tmp_path / "lifts.csv", tmp_path / "set"
    manifest.write_text(f"recording,from,to\n{BAG},0,8.5\n{BAG},8.5,\n")
    program = [sys.executable, str(PROGRAM), event, str(signal.SIGINT.value)]
    command = [*program, "export", "--manifest", str(manifest), "-s", SPEC, "-o", str(out)]
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
        assert line.startswith("robocache: stopped; 1 converted recording is kept in ")
        assert line.endswith(": run the same command again")
    else:
        assert line == "robocache: stopped; nothing is kept: run the same command to start again"
        assert not out.exists()
