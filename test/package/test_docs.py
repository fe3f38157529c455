"""The documentation says what the code does, in plain words."""

from __future__ import annotations

import re
import runpy
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from robocache_ros.spec import load_spec

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if page.parent.name != "api")
NAMED = re.compile(r"`([a-z_.]+):([A-Za-z_.]+)`")


def test_the_generated_pages_are_current() -> None:
    pytest.importorskip("typer")
    for name, page in runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]().items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == page, "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))

    assert [target for target in targets if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    """What GitHub and the site call the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_headings_lead_to_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]*\.md)?#([^)]+)\)", page.read_text(encoding="utf-8"))

    assert [link for link in links if link[1] not in anchors(page.parent / link[0] if link[0] else page)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_lines_of_prose_have_at_most_120_characters(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    prose = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "!", "#"))]

    # A line that is one span of code cannot be divided.
    assert [line for line in prose if len(line) > 120 and not re.fullmatch(r"\s*`[^`]*`\.?", line)] == []


def test_the_tutorial_fuses_exports_and_replays_with_one_spec_that_uses_the_whole_recording() -> None:
    steps = (ROOT / "docs" / "tutorial" / "recording_to_policy.md").read_text(encoding="utf-8").split("## 4.")[1]
    specs = re.findall(r"load_spec\(\"(.+?)\"|--spec (\S+)|spec:=\$PWD/(\S+)", steps)

    assert {"".join(each) for each in specs} == {"config/panda_lift.yaml"}
    assert len(specs) == 4
    # Else its `play --wait-for-subscribers` would wait, and the node miss what is not played yet.
    metadata = yaml.safe_load((ROOT / "test" / "data" / "panda_lift" / "metadata.yaml").read_text(encoding="utf-8"))
    recorded = metadata["rosbag2_bagfile_information"]["topics_with_message_count"]
    used = {stream.topic for stream in load_spec(ROOT / "config" / "panda_lift.yaml").streams}
    assert {each["topic_metadata"]["name"] for each in recorded} == used


@pytest.mark.parametrize("name", NAMED.findall((ROOT / "docs" / "design.md").read_text(encoding="utf-8")), ids=":".join)
def test_functions_that_the_design_names_exist(name: tuple[str, str]) -> None:
    module, function = name
    if module.startswith("nodes."):
        pytest.importorskip("rclpy")

    assert callable(reduce(getattr, function.split("."), import_module(f"robocache_ros.{module}")))


def test_the_design_names_no_function_twice() -> None:
    names = NAMED.findall((ROOT / "docs" / "design.md").read_text(encoding="utf-8"))

    assert len(names) == len(set(names)) > 30


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
