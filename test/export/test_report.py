from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.export import figures
from robocache_ros.export.job import ExportResult, survey
from robocache_ros.export.report import write_report
from robocache_ros.spec import FusionSpec

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Checker(HTMLParser):
    """Every tag is closed in turn; keeps the texts and what is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parsed(path: Path) -> Checker:
    checker = Checker()
    checker.feed(path.read_text(encoding="utf-8"))
    assert checker.open == []
    return checker


@pytest.fixture(scope="module")
def whole(spec: FusionSpec, tmp_path_factory: pytest.TempPathFactory) -> Checker:
    """The report of the whole of panda_lift."""
    out = tmp_path_factory.mktemp("report") / "report.html"
    write_report([survey(Path(__file__).parents[1] / "data" / "panda_lift", spec)], out, dataset=None)
    return parsed(out)


def test_a_dataset_has_its_report_beside_it(made: Callable[[str], ExportResult]) -> None:
    text = " ".join(parsed(made("video").out / "report.html").words)
    assert "Dataset quality" in text
    assert "0 · lift" in text
    assert "1 · again" in text


def test_it_loads_nothing_from_elsewhere(whole: Checker) -> None:
    assert len(whole.sources) == 16  # eight frames of each camera
    assert all(source.startswith("data:image/jpeg;base64,") for source in whole.sources)


def test_it_names_the_faults_of_the_recording(whole: Checker) -> None:
    text = " ".join(" ".join(whole.words).split())
    assert "/panda/joint_states was silent for 152 ms at 4.05 s." in text
    assert "/camera/front/image_raw/compressed lacks 6 single samples (2.2 %)." in text
    assert "/panda/joint_states carries 11 stamps twice" in text
    assert "/panda/joint_states has 7 messages behind newer ones" in text


def test_it_says_where_the_timeline_broke_and_why(whole: Checker) -> None:
    text = " ".join(" ".join(whole.words).split())
    assert re.search(r"joint_position 4\.06 s 160 ms 3 5 /panda/joint_states was silent for 152 ms", text)


def test_every_topic_and_stream_is_in_it(whole: Checker, spec: FusionSpec) -> None:
    text = " ".join(whole.words)
    for stream in spec.streams:
        assert stream.name in text
        assert stream.topic in text


def test_a_name_cannot_smuggle_markup_in(spec: FusionSpec, bags: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    write_report([survey(bags[0], spec)], out, dataset="<script>alert(1)</script>")
    assert "<script>" not in out.read_text()


def test_runs_are_found() -> None:
    assert figures.runs(np.array([1, 1, 0, 2, 2])) == [(0, 2, 1), (2, 3, 0), (3, 5, 2)]
    assert figures.runs(np.array([], np.int64)) == []


def test_one_bad_tick_shows_in_a_long_recording() -> None:
    states = np.ones(1_000_000, np.uint8)
    states[123_456] = 0
    assert '<rect class="invalid" x="123.00" width="1.00"' in figures.state_bar(states, 0, 0)


def test_a_histogram_gathers_what_is_beyond_its_limit() -> None:
    drawn = figures.histogram(np.array([1.0] * 50 + [2.0] * 50 + [500.0]), unit="ms", limit=3.0)
    assert drawn.count('class="over"') == 1
    assert "1 beyond" in drawn


def test_equal_values_make_a_histogram_of_one_bar() -> None:
    assert figures.histogram(np.full(10, 20.0), unit="ms").count("<rect") == 1
