"""Plain words in code and documents."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("robocache_ros", "examples", "launch", "test", ".ci", "kernels", "docs", "config", "benchmarks")
SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".md", ".yaml", ".xml", ".j2")

# Phrases that readers stumble over.
WORDS = {
    "cannot be had": "is not available",
    "is no cloud": "is not a point cloud",
    "the bits it must": "the same bits",
    "a word in the log": "logs a warning",
    "hangs on": "is anchored to",
    "what becomes of": "the outcome of",
    "is mended": "is repaired",
}


def test_sentences_are_plain() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in SUFFIXES]
    found = [
        f"{file.relative_to(ROOT)}: {phrase}; better: {better}"
        for file in [*files, *ROOT.glob("*.md")]
        for text in [file.read_text(encoding="utf-8")]
        for phrase, better in WORDS.items()
        if phrase in text and file != Path(__file__)
    ]

    assert found == []
