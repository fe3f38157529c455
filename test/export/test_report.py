"""The report of recordings and datasets, and its document for machines."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import report as page
from robocache_ros.exporter.boundaries import QualityLimit
from robocache_ros.exporter.job import summarize
from robocache_ros.exporter.report import write_report
from robocache_ros.formats.recording import ExportedRecording
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.stream import SpecQuality
from test.export.conftest import LIFT, lerobot_rows
from test.exporting import export

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

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parsed(path: Path) -> Checker:
    checker = Checker()
    checker.feed(path.read_text(encoding="utf-8"))
    assert checker.open == []
    return checker


@pytest.fixture(scope="module")
def panda(spec) -> ExportedRecording:
    """All of panda_lift."""
    return summarize(LIFT, spec)


@pytest.fixture(scope="module")
def complete(panda, tmp_path_factory) -> Checker:
    """The report of all of panda_lift."""
    out = tmp_path_factory.mktemp("report") / "report.html"
    write_report([panda], out)
    return parsed(out)


def test_it_loads_nothing_from_elsewhere_and_its_thumbnails_are_small(complete):
    sources = [source for source in complete.sources if not source.startswith("#")]
    assert len(sources) == 16  # eight frames of each camera
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    assert sum(map(len, sources)) < 270_000  # of base64


def test_a_dataset_has_its_report_with_its_episodes_and_how_images_are_stored(made):
    text, lossless = (" ".join(parsed(made(media).out / "report.html").words) for media in ("video", "image"))
    assert all(part in text for part in ("Dataset quality", "0 · lift", "1 · again"))
    assert set(re.findall(r"\d\.\d s · (episode \d|no episode)", text)) >= {"episode 0", "episode 1"}
    assert ("lossy" in text, "lossy" in lossless) == (True, False)


def test_it_names_the_faults_of_the_recording_with_the_command_that_shows_them(complete, spec):
    text = " ".join(" ".join(complete.words).split())
    for fault in (
        "/panda/joint_states was silent for 152 ms at 4.05 s.",
        "/camera/front/image_raw/compressed misses 6 single samples (2.2 %).",
        "/panda/joint_states has 11 duplicate stamps",
        "/panda/joint_states has 7 messages out of order",
        f"robocache view {LIFT} --from 3.1 --to 5.2",
    ):
        assert fault in text
    assert re.search(r"joint_position 4\.06 s 160 ms 3 5 /panda/joint_states was silent for 152 ms", text)
    assert all(stream.name in text and stream.topic in text for stream in spec.streams)


def test_one_bad_tick_is_two_pixels_wide_in_a_window_of_1100_pixels_and_drawn_over_held_ones():
    states = np.full(360_000, 2, np.uint8)  # two hours
    states[[100_000, 359_999]] = 0
    drawn = page.state_bar(states, 0, 0)
    widths = [(float(x), float(w)) for x, w in re.findall(r'class="invalid" x="([\d.]+)" width="([\d.]+)"', drawn)]
    assert len(widths) == 2
    assert all(width * 840 / 1000 >= 2 and x + width <= 1000 for x, width in widths)  # the bar has 840 of the pixels
    assert drawn.rindex('class="invalid"') > drawn.rindex('class="held"')


def test_a_topic_has_its_rate_gap_and_delays_over_time(panda):
    stats = panda.topics["/panda/joint_states"]
    caption, drawn = page.over_time(stats, panda.start_ns, panda.stop_ns)
    assert caption == "rate over time, up to 506.2 Hz; below the longest delays, up to 7.679 ms"
    (gap,) = re.findall(r'class="over" x="([\d.]+)" width="([\d.]+)"', drawn)
    at_s, length_s = (float(each) / page.TIME_WIDTH * panda.duration_s for each in gap)
    assert (at_s, length_s) == (pytest.approx(4.05, abs=0.02), pytest.approx(0.152, abs=0.01))
    points = [tuple(map(float, each.split(","))) for each in re.findall(r'points="([^"]+)"', drawn)[0].split()]
    assert len(points) >= page.TIME_BINS - 3
    assert min(y for _, y in points) == pytest.approx(page.RATE_HEIGHT + 4, abs=0.1)  # the longest one is at the top
    of_an_hour = page.over_time(stats, panda.start_ns, panda.start_ns + 3600 * 10**9)[1]
    assert re.findall(r'class="over" x="[\d.]+" width="([\d.]+)"', of_an_hour) == ["2.0"]  # pixels


def test_a_histogram_gathers_what_is_beyond_its_limit_and_equal_values_are_one_bar():
    drawn = page.histogram(np.array([1.0] * 50 + [2.0] * 50 + [500.0]), unit="ms", limit=3.0)
    assert drawn.count('class="over"') == 1
    assert "1 beyond" in drawn
    assert page.histogram(np.full(10, 20.0), unit="ms").count("<rect") == 1


def test_a_report_is_replaced_only_on_request_and_escapes_names(spec, bags, tmp_path):
    out = tmp_path / "report.html"
    out.write_text("mine")
    episode = summarize(bags[0], spec)
    for path, message in ((out, r"report\.html: exists; .* --overwrite"), (out / "report.html", "report.html: ")):
        with pytest.raises(RoboCacheError, match=message):
            write_report([episode], path)
    assert out.read_text() == "mine"
    write_report([episode], out, overwrite=True)
    assert "Recording quality" in out.read_text()
    write_report([episode], out, overwrite=True, dataset="<script>alert(1)</script>")
    assert "<script>" not in out.read_text()
    assert sorted(tmp_path.iterdir()) == [out, tmp_path / "report.json"]


def test_a_sample_from_before_the_recording_makes_no_silence_in_its_report(bags, spec, tmp_path):
    with Bag(bags[0]) as bag:
        types, messages = {name: topic.type for name, topic in bag.topics.items()}, list(bag.messages())
    first = next(number for number, message in enumerate(messages) if message.topic == "/panda/joint_states")
    data = bytearray(messages[first].data)
    struct.pack_into("<i", data, 4, struct.unpack_from("<i", data, 4)[0] - 148)  # the seconds of its stamp
    messages[first] = messages[first]._replace(data=bytes(data))
    recording = summarize(write_bag(tmp_path / "stale", types, messages), spec)
    write_report([recording], tmp_path / "report.html")
    text = " ".join(parsed(tmp_path / "report.html").words)
    assert "/panda/joint_states was silent for 152 ms at 0.55 s." in text
    assert not re.search(r"at -\d", text)
    stats = recording.topics["/panda/joint_states"]
    assert [gap.start_ns >= recording.start_ns for gap in stats.gaps] == [True]
    assert stats.missing < 10


# The top of the report, and its document for machines.


@pytest.fixture(scope="module")
def recordings(spec, bags) -> list[ExportedRecording]:
    """A recording with a gap, and one without, under limits, computed under both visibilities."""
    limited = replace(spec, quality=SpecQuality(max_gap_ms=160, max_invalid=0.01, min_rate_hz=1))
    return [summarize(bag, limited, compare_visibility=True) for bag in bags]


@pytest.fixture(scope="module")
def reported(recordings, tmp_path_factory) -> tuple[str, dict[str, Any]]:
    """The text of their report, and its document."""
    out = tmp_path_factory.mktemp("report") / "report.html"
    document = write_report(recordings, out, dataset="lifts")
    assert json.loads(out.with_suffix(".json").read_text(encoding="utf-8")) == document
    return out.read_text(encoding="utf-8"), document


def test_moments_are_sorted_by_their_length_and_the_worst_is_the_gap(reported):
    text, document = reported
    worst, first = document["worst_moments"][0], document["recordings"][0]
    assert (worst["recording"], worst["stream"], first["worst_stream"]) == (0, "joint_position", "joint_position")
    assert "/panda/joint_states was silent for 152 ms" in worst["cause"]
    assert f'href="#recording-0-joint_position-{worst["tick_ns"]}"' in text
    assert first["longest_interruption"]["length_ms"] == 160
    assert sum(first["shares"].values()) == pytest.approx(1)
    lengths = [moment["length_ms"] for moment in document["worst_moments"]]
    assert lengths == sorted(lengths, reverse=True)
    assert document["interruptions"] == len(lengths)


def test_limits_that_are_near_or_exceeded_are_listed_and_every_link_leads_to_a_place(reported):
    states = {(one["stream"], one["name"]): one["state"] for one in reported[1]["recordings"][0]["limits"]}
    assert states["joint_position", "max_invalid"] == "exceeded"
    assert states["joint_position", "max_gap_ms"] == "near"
    assert states["front", "min_rate_hz"] == "met"
    assert "exceeded: an export refuses it" in reported[0]
    links = re.findall(r'href="#([^"]+)"', reported[0])
    assert len(links) > 3
    assert set(links) <= set(re.findall(r'id="([^"]+)"', reported[0]))


def test_every_stream_is_compared_under_both_visibilities_only_on_request(reported, spec, made):
    ideal = reported[1]["visibility_comparison"]["ideal"]
    assert list(ideal) == [stream.name for stream in spec.streams]
    assert ideal["wrist"]["mean_age_ms"] > 0
    document = json.loads((made("video").out / "report.json").read_text(encoding="utf-8"))
    assert document["visibility_comparison"] is None
    assert [one["first_episode"] for one in document["recordings"]] == [0, 2]


@pytest.mark.parametrize(
    ("name", "limit", "states"),
    [
        ("max_invalid", 0.0, {0.0: "met"}),
        ("max_gap_ms", 100, {79: "met", 100: "near", 101: "exceeded"}),
        ("min_rate_hz", 20, {30: "met", 24: "near", 19: "exceeded"}),
    ],
)
def test_a_value_within_a_fifth_of_a_limit_is_near(name, limit, states):
    for value, state in states.items():
        of = QualityLimit(name, "a", value, limit, "")
        assert ("exceeded" if of.exceeded else "near" if of.near else "met") == state


def test_ideal_is_next_to_deployed_which_misses_late_messages_whichever_is_exported(spec, bags, tmp_path):
    late, compared, ages_ns = replace(spec, delay_ms=30.0), [], []  # shorter than the delays of the front camera
    for visibility in ("ideal", "deployed"):
        options = DatasetOptions(visibility=visibility, compare_visibility=True, media="none")
        result = export(bags, late, tmp_path / visibility, options)
        compared.append(json.loads((result.out / "report.json").read_text(encoding="utf-8"))["visibility_comparison"])
        column = [stream.name for stream in result.recordings[0].spec.streams].index("voxels")
        ages_ns.append(np.array(lerobot_rows(result.out)["robocache.age_ns"].to_pylist())[:, column].mean())
    assert result.recordings[0].counters["voxels"]["late"] > 5
    assert ages_ns[0] < ages_ns[1]
    assert compared[0] == compared[1]
    assert list(compared[0]) == ["ideal", "deployed"]
    ideal, deployed = compared[0].values()
    assert list(ideal) == [stream.name for stream in late.streams if stream.kind != "image"]
    assert 0 < ideal["voxels"]["mean_age_ms"] < deployed["voxels"]["mean_age_ms"]
    assert "What latency costs" in (result.out / "report.html").read_text(encoding="utf-8")


def test_only_the_worst_moments_and_recordings_are_shown_in_full(recordings, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "SHOWN", 1)
    monkeypatch.setattr(page, "MOMENTS_SHOWN", 3)
    half = replace(recordings[0], valid=recordings[0].valid * (np.arange(len(recordings[0].valid)) % 2 == 0)[:, None])
    write_report([recordings[1], half, recordings[1]], tmp_path / "report.html", dataset="lifts")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.findall(r'<section id="([^"]+)"', text) == ["recording-1"]
    assert "Details follow of the 1 recordings" in text
    assert "2 · again" in text
    moments = text[text.index('id="moments"') : text.index('id="limits"')]
    assert moments.count("robocache view ") == 3
    assert "the longest 3 of " in moments
