"""A signal ends a command, also where Python ignores the exception that its handler raises."""

from __future__ import annotations

import os
import signal
import sys
import weakref

import pytest

from robocache_ros.cli.program import StopSignals
from test import forked
from test.cli.conftest import BAG, ROOT, SPEC


@pytest.fixture(autouse=True)
def unraisable_hook(monkeypatch):
    """The hook of the tests, afterwards."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_the_next_call_ends_the_command_if_the_exception_was_ignored(number, error):
    seen: list[int] = []
    call = StopSignals().checked(seen.append)
    call(1)
    with pytest.raises(error):
        signal.raise_signal(number)
    with pytest.raises(error):
        call(2)
    assert seen == [1]


def test_an_exception_that_python_ignores_is_not_printed(capfd):
    class Held:
        pass

    held, call = Held(), StopSignals().checked(lambda _value: None)
    weakref.finalize(held, signal.raise_signal, signal.SIGINT)
    del held
    with pytest.raises(KeyboardInterrupt):
        call(1)
    assert capfd.readouterr().err == ""


def test_ctrl_c_stays_ignored_in_the_background():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    call = StopSignals().checked(lambda _value: None)
    signal.raise_signal(signal.SIGINT)
    call(1)


PROGRAM = ROOT / "test" / "export" / "interrupted_export.py"


@pytest.mark.parametrize(("event", "kept"), [("Advanced", 0), ("Converted", 1)])
def test_ctrl_c_is_one_line_that_says_how_to_go_on(tmp_path, event, kept):
    manifest, out = tmp_path / "lifts.csv", tmp_path / "set"
    manifest.write_text(f"recording,from,to\n{BAG},0,8.5\n{BAG},8.5,\n")
    command = [sys.executable, str(PROGRAM), event, str(signal.SIGINT.value), "export", "--manifest", str(manifest)]
    done = forked.run(
        [*command, "-s", SPEC, "-o", str(out), "--jobs", "2", "--media", "none"],
        preload=forked.EXPORT, capture_output=True, text=True, start_new_session=True, timeout=100,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (130, "")
    (line,) = done.stderr.splitlines()
    if kept:
        assert line.startswith("robocache: stopped; 1 converted recording is kept in ")
        assert line.endswith(": run the same command again")
    else:
        assert line == "robocache: stopped; nothing is kept: run the same command to start again"
        assert not out.exists()
