"""One name for one thing, in code and documents."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("robocache_ros", "examples", "launch", "test", ".ci")
TEXTS = sorted(
    file
    for folder in (*FOLDERS, "kernels", "docs", "config", "benchmarks")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in (".py", ".cu", ".cuh", ".cpp", ".md", ".yaml", ".xml", ".j2") and file != Path(__file__)
)
PAGES = sorted(ROOT.glob("*.md"))


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
    r"--on (here|ray)\b": "--executor",
}


def test_former_names_are_gone() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {pattern}; the word is: {word}"
        for file in [*TEXTS, *PAGES]
        for text in [file.read_text(encoding="utf-8")]
        for pattern, word in OLD_WORDS.items()
        if re.search(pattern, text)
    ]

    assert found == []
