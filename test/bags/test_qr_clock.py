"""The latency of cameras that see the page with the clock."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.bags.calibrate import Calibration, calibrate
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.write import write_bag
from robocache_ros.sim.simulation import image_cdr
from test.bags.moving_robot import START_S, TYPES, spec

pytest.importorskip("segno")
zxingcpp = pytest.importorskip("zxingcpp")

from robocache_ros.bags import qr_clock  # noqa: E402 - after the packages that it needs

LATENCY_MS = 43.0


@pytest.fixture(scope="module")
def html() -> str:
    return qr_clock.page()


def modules_of(html: str, number: int) -> np.ndarray:
    """The modules that the page draws for a code."""
    found = re.search(r'atob\("([^"]+)"\)', html)
    assert found
    bits = np.unpackbits(np.frombuffer(base64.b64decode(found[1]), np.uint8))
    size = qr_clock.SIDE**2
    return bits[number * size : (number + 1) * size].reshape(qr_clock.SIDE, qr_clock.SIDE)


def picture(modules: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """(H, W, 3) of a code on a display, with noise."""
    grey = np.kron(1 - np.pad(modules, qr_clock.BORDER), np.ones((4, 4))) * 170 + 40
    return np.repeat((grey + random.normal(0, 8, grey.shape)).clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)


def seen(folder: Path, html: str, *, frames: int = 90, scatter_ms: float = 1.0) -> Calibration:
    """What is measured of a camera at 30 Hz that sees the page on a fast display, without joints."""
    random = np.random.default_rng(0)
    messages = []
    for index in range(frames):
        exposed_ns = START_S * 10**9 + index * 33_333_333
        number = exposed_ns // (qr_clock.STEP_MS * 1_000_000) % qr_clock.CODES
        stamp_ns = exposed_ns + round((LATENCY_MS + scatter_ms * random.normal()) * 1e6)
        data = image_cdr(stamp_ns, "camera", picture(modules_of(html, number), random))
        messages.append(RawMessage("/image", stamp_ns + 1_000_000, data))
    write_bag(folder, {"/image": TYPES["/image"]}, sorted(messages, key=lambda message: message.log_ns))
    with Bag(folder) as bag:
        return calibrate(bag, spec(), reader=qr_clock.CodeReader)


def test_the_page_needs_no_network_and_its_codes_are_read(html: str) -> None:
    assert "http" not in html.lower()
    assert "src=" not in html
    for number in (0, 1, qr_clock.CODES - 1):
        image = picture(modules_of(html, number), np.random.default_rng(0))
        (found,) = zxingcpp.read_barcodes(image[..., 0].copy())
        assert found.text == f"ROBOCACHE{number:04d}"


def test_the_latency_of_a_camera_is_read_from_the_codes(tmp_path: Path, html: str) -> None:
    (one,) = seen(tmp_path / "bag", html).measurements

    assert (one.name, one.against, one.samples) == ("front", "host clock", 90)
    assert abs(one.value - LATENCY_MS) < 1.5
    assert one.low <= LATENCY_MS <= one.high
    assert one.high - one.low < 6


def test_few_frames_with_codes_are_refused(tmp_path: Path, html: str) -> None:
    (one,) = seen(tmp_path / "bag", html, frames=10).measurements

    assert one.refused.startswith("10 of 10 frames show a code, 30 are needed; ")


def test_stamps_that_do_not_follow_the_clock_of_the_page_are_refused(tmp_path: Path, html: str) -> None:
    (one,) = seen(tmp_path / "bag", html, scatter_ms=400).measurements

    assert "stamp the camera by the clock of the page's host" in one.refused
