"""The commands of the tutorial for a recording of one's own run as it shows them."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial" / "bag_to_dataset.md"
BLOCKS = re.compile(r"```(bash|text)\n(.*?)```", re.DOTALL)


def words(text: str) -> list[str]:
    return text.split()


def test_the_tutorial_from_a_bag_to_a_dataset_runs_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from robocache_ros.cli import main

    shutil.copytree(ROOT / "test" / "data" / "panda_lift", tmp_path / "my_recording")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    printed, ran = "", []
    for kind, block in BLOCKS.findall(TUTORIAL.read_text(encoding="utf-8")):
        if kind == "text":
            lines = [words(line) for line in printed.splitlines()]
            for shown in block.splitlines():
                assert words(shown) in lines, f"not in the output: {shown}"
            continue
        for command in block.splitlines():
            name, *arguments = shlex.split(command, comments=True)
            if name == "robocache":
                with pytest.raises(SystemExit) as ended:
                    main(arguments)
                captured = capfd.readouterr()
                assert not ended.value.code, captured.err
                printed, ran = captured.out + captured.err, [*ran, arguments[0]]
    assert ran == ["info", "check", "export"]
    assert (tmp_path / "dataset" / "meta" / "info.json").is_file()


def test_the_refusals_that_the_tutorial_lists_are_those_of_the_commands() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "robocache_ros" / "bags").rglob("*.py"))
    table = TUTORIAL.read_text(encoding="utf-8").partition("## If a command fails")[2]
    refusals = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    assert len(refusals) == 4
    assert [text for text in refusals if text not in sources] == []
