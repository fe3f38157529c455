"""The command line, run in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
BAG, SPEC = str(ROOT / "test" / "data" / "panda_lift"), str(ROOT / "config" / "panda_lift.yaml")


class Finished(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def robocache(capfd: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    from robocache_ros.cli import main

    def run(*arguments: object) -> Finished:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Finished(int(ended.value.code or 0), captured.out, captured.err)

    return run
