"""The commands of the page on exports of many machines, run as it shows them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from test.fleet.deploy.conftest import BUCKET, ROOT
from test.fleet.s3_server import Bucket

PAGE = ROOT / "docs" / "how-to" / "export_on_many_machines.md"
BLOCKS = re.compile(r"```bash\n(.*?)```", re.DOTALL)


def commands() -> list[list[str]]:
    """The arguments of `robocache`, without the commands that need a cluster: the test of KubeRay runs that of Ray."""
    text = "\n".join(BLOCKS.findall(PAGE.read_text(encoding="utf-8"))).replace("\\\n", "")
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [line[1:] for line in lines if line[:1] == ["robocache"] and "ray" not in line]


def test_the_commands_run_as_shown(
    bucket: Bucket, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from robocache_ros.cli import main

    monkeypatch.chdir(data)
    ran, reported = [], ""
    for arguments in commands():
        with pytest.raises(SystemExit) as ended:
            main([argument.replace(BUCKET, bucket.url) for argument in arguments])
        out, errors = capfd.readouterr()
        assert not ended.value.code, errors
        ran.append(arguments[0])
        reported += out
    assert ran == ["check", "export", "info", "export", "export", "export", "fleet", "fleet", "fleet"]
    assert "1 of 2 recordings are converted; the last shard writes the dataset" in reported
    assert ": complete" in reported


def test_the_line_of_a_shard_is_that_of_the_command() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "robocache_ros" / "cli").rglob("*.py"))
    (line,) = re.findall(r"^412 of 1,000 (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(part in sources for part in line.split("; "))
