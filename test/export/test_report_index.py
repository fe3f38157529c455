"""The top of the report, and its document for machines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.exporter import report as page
from robocache_ros.exporter.boundaries import QualityLimit
from robocache_ros.exporter.job import ExportResult, export, summarize
from robocache_ros.exporter.report import write_report
from robocache_ros.formats.recording import ExportedRecording
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.stream import SpecQuality


@pytest.fixture(scope="module")
def recordings(spec: FusionSpec, bags: list[Path]) -> list[ExportedRecording]:
    """A recording with a gap, and one without, under limits, computed under both visibilities."""
    limited = replace(spec, quality=SpecQuality(max_gap_ms=160, max_invalid=0.01, min_rate_hz=1))
    return [summarize(bag, limited, compare_visibility=True) for bag in bags]


@pytest.fixture(scope="module")
def reported(
    recordings: list[ExportedRecording], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Any]]:
    """The text of their report, and its document."""
    out = tmp_path_factory.mktemp("report") / "report.html"
    document = write_report(recordings, out, dataset="lifts")
    assert json.loads(out.with_suffix(".json").read_text(encoding="utf-8")) == document
    return out.read_text(encoding="utf-8"), document


def test_every_link_leads_to_a_place_in_the_report(reported: tuple[str, dict[str, Any]]) -> None:
    links = re.findall(r'href="#([^"]+)"', reported[0])
    assert len(links) > 3
    assert set(links) <= set(re.findall(r'id="([^"]+)"', reported[0]))


def test_the_worst_moment_is_the_gap(reported: tuple[str, dict[str, Any]]) -> None:
    worst = reported[1]["worst_moments"][0]
    assert (worst["recording"], worst["stream"]) == (0, "joint_position")
    assert "/panda/joint_states was silent for 152 ms" in worst["cause"]
    assert f'href="#recording-0-joint_position-{worst["tick_ns"]}"' in reported[0]


def test_moments_are_sorted_by_their_length(reported: tuple[str, dict[str, Any]]) -> None:
    lengths = [moment["length_ms"] for moment in reported[1]["worst_moments"]]
    assert lengths == sorted(lengths, reverse=True)
    assert reported[1]["interruptions"] == len(lengths)


def test_ten_moments_are_shown_with_their_commands(
    recordings: list[ExportedRecording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MOMENTS_SHOWN", 3)
    write_report(recordings, tmp_path / "report.html", dataset="lifts")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    moments = text[text.index('id="moments"') : text.index('id="limits"')]
    assert moments.count("robocache view ") == 3
    assert "the longest 3 of " in moments


def test_the_index_names_the_worst_stream(reported: tuple[str, dict[str, Any]]) -> None:
    first = reported[1]["recordings"][0]
    assert first["worst_stream"] == "joint_position"
    assert first["longest_interruption"]["length_ms"] == 160
    assert sum(first["shares"].values()) == pytest.approx(1)


def test_limits_that_are_near_or_exceeded_are_listed(reported: tuple[str, dict[str, Any]]) -> None:
    states = {(one["stream"], one["name"]): one["state"] for one in reported[1]["recordings"][0]["limits"]}
    assert states["joint_position", "max_invalid"] == "exceeded"
    assert states["joint_position", "max_gap_ms"] == "near"
    assert states["front", "min_rate_hz"] == "met"
    assert "exceeded: an export refuses it" in reported[0]


@pytest.mark.parametrize(
    ("name", "value", "limit", "state"),
    [
        ("max_invalid", 0.0, 0.0, "met"),
        ("max_gap_ms", 79, 100, "met"),
        ("max_gap_ms", 100, 100, "near"),
        ("max_gap_ms", 101, 100, "exceeded"),
        ("min_rate_hz", 30, 20, "met"),
        ("min_rate_hz", 24, 20, "near"),
        ("min_rate_hz", 19, 20, "exceeded"),
    ],
)
def test_a_value_within_a_fifth_of_a_limit_is_near(name: str, value: float, limit: float, state: str) -> None:
    of = QualityLimit(name, "a", value, limit, "")
    assert ("exceeded" if of.exceeded else "near" if of.near else "met") == state


def test_ideal_is_next_to_deployed(reported: tuple[str, dict[str, Any]], spec: FusionSpec) -> None:
    compared = reported[1]["visibility_comparison"]
    assert list(compared) == ["ideal", "deployed"]
    assert list(compared["ideal"]) == [stream.name for stream in spec.streams]
    assert compared["ideal"]["wrist"]["mean_age_ms"] > 0
    assert "What latency costs" in reported[0]


def test_a_short_delay_costs_values(spec: FusionSpec, bags: list[Path]) -> None:
    (found,) = (summarize(bags[1], replace(spec, delay_ms=30.0), compare_visibility=True).visibilities,)
    row = [stream.name for stream in spec.streams].index("voxels")
    assert found["deployed"]["age_ms"][row] > found["ideal"]["age_ms"][row]


def test_nothing_is_compared_without_a_request(made: Callable[[str], ExportResult]) -> None:
    document = json.loads((made("video").out / "report.json").read_text(encoding="utf-8"))
    assert document["visibility_comparison"] is None
    assert [one["first_episode"] for one in document["recordings"]] == [0, 2]


def test_both_visibilities_give_one_comparison(spec: FusionSpec, bags: list[Path], tmp_path: Path) -> None:
    compared = []
    for visibility in ("ideal", "deployed"):
        options = DatasetOptions(visibility=visibility, compare_visibility=True, media="none")
        out = export(bags, spec, tmp_path / visibility, options).out
        compared.append(json.loads((out / "report.json").read_text(encoding="utf-8"))["visibility_comparison"])
    assert compared[0] == compared[1] is not None


def test_only_the_worst_recordings_are_shown_in_full(
    recordings: list[ExportedRecording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "SHOWN", 1)
    half = replace(recordings[0], valid=recordings[0].valid * (np.arange(len(recordings[0].valid)) % 2 == 0)[:, None])
    write_report([recordings[1], half, recordings[1]], tmp_path / "report.html", dataset="lifts")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.findall(r'<section id="([^"]+)"', text) == ["recording-1"]
    assert "Details follow of the 1 recordings" in text
    assert "2 · again" in text
