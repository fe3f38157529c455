"""The rules that keep the code easy to walk through: small files, functions and folders, one name for one thing."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "robocache_ros"
FOLDERS = ("robocache_ros", "examples", "launch", "test", ".ci")
SOURCES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
TEXTS = sorted(
    file
    for folder in (*FOLDERS, "kernels", "docs", "config", "benchmarks")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in (".py", ".cu", ".cuh", ".cpp", ".md", ".yaml", ".xml", ".j2") and file != Path(__file__)
)
PAGES = sorted(ROOT.glob("*.md"))


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


MAX_LINES = 250
MAX_FUNCTION_LINES = 50
MAX_FILES = 12
REASON = "# More than 50 lines"

# Names that several files may have, and why.
SHARED_NAMES = {
    "__init__.py": "Python's name",
    "__main__.py": "Python's name",
    "cpu.py": "the CPU backend of each subject",
    "oracle.py": "the float64 reference of each subject",
    "arguments.py": "the launch arguments of each subject",
    "backend.py": "the engine's CPU and GPU backends, in sibling folders",
    "blend.py": "the public call and its CUDA launches",
    "convert.py": "the public call and its CUDA launches",
    "voxelize.py": "the public call and its CUDA launches",
    "fuse.py": "robocache_ros.bags.fuse is a documented import; fuse is a public operation",
}

# Former names of classes, functions and options, and phrases that readers stumble over.
OLD_WORDS = {
    r"\bRooms?\(|\bclass Rooms?\b": "BufferPool or workspace",
    r"\bUplink": "UploadQueue",
    r"\bclass Track\b|\bTrack\(": "SampleIndex",
    r"\bPairer\b": "DepthSynchronizer",
    r"\bBeatStats\b|\bclass Beat\b|\bBeat\(": "TickLoop",
    r"(?i)(?<![a-z])beat(?![a-z])": "emission time",
    r"\bTaker\b|\btaker\b": "RawSubscriber",
    r"\bIntake\b|\bintake\b": "Ingest",
    r"\bOwnNode\b": "BackgroundNode",
    r"\brehears": "warm up",
    r"\bend_in_peace\b": "ignore_sigint",
    r"\bbe_punctual\b": "reduce_timer_slack",
    r"\bsettle\(": "freeze_gc",
    r"\bcannot be had\b": "is not available",
    r"\bis no cloud\b": "is not a point cloud",
    r"\bthe bits it must\b": "the same bits",
    r"\ba word in the log\b": "logs a warning",
    r"\bhangs on\b": "is anchored to",
    r"\bwhat becomes of\b": "the outcome of",
    r"\bis mended\b": "is repaired",
    r"--no-video\b": "--media",
}


@pytest.mark.parametrize("file", SOURCES, ids=relative)
def test_a_file_has_at_most_250_lines(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MAX_LINES, "split it by subject"


@pytest.mark.parametrize("file", SOURCES, ids=relative)
def test_a_function_has_at_most_50_lines_or_a_comment_with_the_reason(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            above = "\n".join(lines[max(0, first - 5) : first - 1])
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES or REASON in above, f"{node.name}: {length} lines"


def test_a_folder_has_at_most_a_dozen_files() -> None:
    counts = Counter(file.parent for file in SOURCES)

    assert {relative(folder): count for folder, count in counts.items() if count > MAX_FILES} == {}


def test_no_two_files_have_one_name() -> None:
    counts = Counter(file.name for file in PACKAGE.rglob("*.py") if file.name not in SHARED_NAMES)

    assert [name for name, count in counts.items() if count > 1] == []


def test_every_name_that_files_may_share_is_shared() -> None:
    counts = Counter(file.name for file in PACKAGE.rglob("*.py"))

    assert [name for name in SHARED_NAMES if counts[name] < 2] == []


@pytest.mark.parametrize("pattern", OLD_WORDS)
def test_former_names_are_gone(pattern: str) -> None:
    old = re.compile(pattern)
    found = [relative(file) for file in [*TEXTS, *PAGES] if old.search(file.read_text(encoding="utf-8"))]

    assert found == [], f"the word is: {OLD_WORDS[pattern]}"
