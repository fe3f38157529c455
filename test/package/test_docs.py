"""The documentation says what the code does, in plain words."""

import re
import runpy
from functools import cache, reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from robocache_ros.spec import load_spec

ROOT = Path(__file__).parents[2]
PAGES = {
    page: page.read_text(encoding="utf-8")
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    if page.parent.name != "api"
}
CODE = re.compile(r"```.*?```", re.DOTALL)


def test_the_generated_pages_are_current():
    pytest.importorskip("typer")
    for name, page in runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]().items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == page, "run: make docs"


def test_links_inside_the_repository_lead_to_files_and_headings():
    link = re.compile(r"\]\(([^)#:\s]*)(?:#([^)]+))?\)")
    links = [(page, page.parent / to if to else page, to, at) for page in PAGES for to, at in link.findall(PAGES[page])]
    assert [(page, to) for page, file, to, _ in links if not file.exists()] == []
    headings = [(page, file, at) for page, file, _, at in links if at and file.suffix == ".md"]
    assert [(page, at) for page, file, at in headings if at not in anchors(file)] == []


@cache
def anchors(page):
    """What GitHub and the site call the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_lines_of_prose_have_at_most_120_characters():
    lines = [(page, line) for page, text in PAGES.items() for line in CODE.sub("", text).splitlines()]
    prose = [each for each in lines if not each[1].lstrip().startswith(("|", "!", "#"))]
    # A line that is one span of code cannot be divided.
    assert [each for each in prose if len(each[1]) > 120 and not re.fullmatch(r"\s*`[^`]*`\.?", each[1])] == []


def test_the_tutorial_fuses_exports_and_replays_with_one_spec_that_uses_the_whole_recording():
    steps = PAGES[ROOT / "docs" / "tutorial" / "recording_to_policy.md"].split("## 4.")[1]
    specs = re.findall(r"load_spec\(\"(.+?)\"|--spec (\S+)|spec:=\$PWD/(\S+)", steps)
    assert ["".join(each) for each in specs] == ["config/panda_lift.yaml"] * 4
    # Else its `play --wait-for-subscribers` would wait, and the node miss what is not played yet.
    metadata = yaml.safe_load((ROOT / "test" / "data" / "panda_lift" / "metadata.yaml").read_text(encoding="utf-8"))
    recorded = metadata["rosbag2_bagfile_information"]["topics_with_message_count"]
    used = {stream.topic for stream in load_spec(ROOT / "config" / "panda_lift.yaml").streams}
    assert {each["topic_metadata"]["name"] for each in recorded} == used


def test_functions_that_the_design_names_exist_and_are_named_once():
    names = re.findall(r"`([a-z_.]+):([A-Za-z_.]+)`", PAGES[ROOT / "docs" / "design.md"])
    assert len(names) == len(set(names)) > 30
    for module, function in names:
        if not module.startswith("nodes.") or find_spec("rclpy"):
            assert callable(reduce(getattr, function.split("."), import_module(f"robocache_ros.{module}")))


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


def test_sentences_are_plain():
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in SUFFIXES]
    texts = {file: file.read_text(encoding="utf-8") for file in [*files, *ROOT.glob("*.md")] if file != Path(__file__)}
    found = [
        f"{file.relative_to(ROOT)}: {phrase}; better: {better}"
        for file, text in texts.items()
        for phrase, better in WORDS.items()
        if phrase in text
    ]
    assert found == []
