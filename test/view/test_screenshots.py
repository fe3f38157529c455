"""What a user sees: `robocache view` in the viewer of Rerun, and the report in Chromium, as pictures of a screen."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from robocache_ros.exporter.job import summarize
from robocache_ros.exporter.report import state_bar, write_report
from robocache_ros.spec import load_spec
from test.cli.conftest import BAG, SPEC

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
COLORS = {"aligned": (0x2F, 0x9E, 0x8F), "held": (0xE5, 0xA9, 0x3D), "invalid": (0xCF, 0x4A, 0x5B)}
STARTS_S = 600  # of a viewer, which draws without a GPU


def pixels(path):
    """The (H, W, 3) pixels of a picture."""
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"), np.int64)


def of_color(picture, color, tolerance):
    """Whether each pixel has a color: (H, W) bool."""
    found: NDArray[Any] = (np.abs(picture - color) <= tolerance).all(axis=-1)
    return found


def screenshot(page, height):
    """The upper part of a page, 1:1."""
    assert CHROMIUM
    out = page.with_suffix(".png")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"]
    places = [f"--window-size=1200,{height}", f"--user-data-dir={page.parent / 'chromium'}", f"--screenshot={out}"]
    subprocess.run([CHROMIUM, *options, *places, page.as_uri()], check=True, capture_output=True, timeout=STARTS_S)
    return pixels(out)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_report_shows_a_gap_of_one_tick_in_half_an_hour(tmp_path):
    page = tmp_path / "report.html"
    write_report([summarize(BAG, load_spec(SPEC))], page)
    states = np.ones(30 * 60 * 50, np.uint8)
    ideal = state_bar(states, 0, 0)
    states[40_000] = 0
    text = page.read_text(encoding="utf-8")
    first = text[text.index('<svg class="bar"') :].partition("</svg>")[0] + "</svg>"

    def marked(bar):
        page.write_text(text.replace(first, bar, 1), encoding="utf-8")
        return of_color(screenshot(page, 2000), COLORS["invalid"], 0)

    gap = marked(state_bar(states, 0, 0)) & ~marked(ideal)
    columns = gap.sum(axis=0)
    assert (columns >= 12).sum() >= 1  # of the 18 of the bar
    assert columns.sum() == columns[columns >= 12].sum()  # and nothing else


@pytest.mark.skipif(find_spec("rerun") is None or not shutil.which("xvfb-run"), reason="needs rerun-sdk and xvfb-run")
def test_the_viewer_shows_the_strips_of_validity(tmp_path):
    recording, out = tmp_path / "seen.rrd", tmp_path / "seen.png"
    view = ["view", str(BAG), "--spec", str(SPEC), "--from", "3.6", "--to", "4.6", "--save", str(recording)]
    subprocess.run([sys.executable, "-m", "robocache_ros", *view], check=True, timeout=STARTS_S)
    viewer = [sys.executable, "-m", "rerun", str(recording), "--screenshot-to", str(out), "--window-size", "1300x850"]
    subprocess.run(["xvfb-run", "-a", *viewer], check=True, capture_output=True, timeout=STARTS_S)
    picture = pixels(out)
    height, width = picture.shape[:2]
    strips = picture[2 * height // 3 :, width // 3 :]
    shown = {name: of_color(strips, tuple(round(0.785 * part) for part in color), 3) for name, color in COLORS.items()}
    assert all(mask.sum() > 500 for mask in shown.values()), {name: mask.sum() for name, mask in shown.items()}
    aligned, invalid = (shown[name].any(axis=1) for name in ("aligned", "invalid"))
    assert (aligned & invalid).sum() > 20  # in one strip
    cameras = picture[: height // 3, : width // 3]
    assert len(np.unique(cameras.reshape(-1, 3), axis=0)) > 10
