"""A clock that cameras can read: a page that shows the time as QR codes, and the latency of frames that show it.

The page shows one of CODES codes, which stand for the time of the host modulo CODES * STEP_MS. It draws a code that
stands for the middle of the time for which the display will show it, so that half a refresh is no error; what the panel
and the compositor of the desktop add is part of the result. UMI calibrates its cameras by such codes (Chi et al.,
Universal Manipulation Interface, RSS 2024).
"""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.calibrate import COVERAGE, RESAMPLES, FrameReader, Lag, RefusedError, Signal
from robocache_ros.extras import need

STEP_MS, CODES = 4, 2500
CYCLE_S = STEP_MS * CODES / 1e3
SIDE, BORDER = 21, 4  # modules of a code, and of the white border
MIN_FRAMES = 30  # that show a code
BLOCK_S = 1.0
LARGEST_SCATTER_S = 0.1  # middle half of the latencies
_TEXT = re.compile(r"ROBOCACHE(\d{4})", re.ASCII)


def code(number: int) -> NDArray[np.bool_]:
    """Return the (SIDE, SIDE) modules of a code, dark ones true; RoboCacheError without the extra `calibrate`."""
    made = need("segno", "calibrate").make_qr(f"ROBOCACHE{number:04d}", version=1, error="q", boost_error=False, mask=2)
    return np.array([list(row) for row in made.matrix], bool)


def page() -> str:
    """Return the HTML of the clock, which needs no network."""
    modules = np.stack([code(number) for number in range(CODES)])
    table = base64.b64encode(np.packbits(modules.reshape(-1)).tobytes()).decode()
    values = {"SIDE": SIDE, "BORDER": BORDER, "STEP": STEP_MS, "CODES": CODES, "TABLE": table}
    return re.sub(r"@(\w+)@", lambda found: str(values[found[1]]), _PAGE)


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>RoboCache clock</title>
<style>
body { margin: 0; background: white; font: 16px sans-serif; text-align: center }
canvas { width: 90vmin; height: 90vmin; image-rendering: pixelated }
</style>
<canvas id="code"></canvas>
<div id="text"></div>
<script>
"use strict";
const SIDE = @SIDE@, BORDER = @BORDER@, STEP = @STEP@, CODES = @CODES@;
const bits = Uint8Array.from(atob("@TABLE@"), c => c.charCodeAt(0));
const canvas = document.getElementById("code"), text = document.getElementById("text");
canvas.width = canvas.height = SIDE + 2 * BORDER;
const context = canvas.getContext("2d");
let last = 0, refresh = 1000 / 60;
function draw(now) {
  const took = now - last;
  last = now;
  if (took > 2 && took < 50) refresh += 0.05 * (took - refresh);
  // Drawn now, shown from the next refresh to the one after it: the code stands for the middle.
  const shown = Date.now() - performance.now() + now + 1.5 * refresh;
  const number = Math.floor(shown / STEP) % CODES;
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = "black";
  for (let i = 0; i < SIDE * SIDE; i++) {
    const bit = number * SIDE * SIDE + i;
    if (bits[bit >> 3] >> (7 - (bit & 7)) & 1) context.fillRect(BORDER + i % SIDE, BORDER + Math.floor(i / SIDE), 1, 1);
  }
  text.textContent = `${new Date(shown).toISOString()}, ${(1000 / refresh).toFixed(1)} Hz`;
  requestAnimationFrame(draw);
}
requestAnimationFrame(draw);
</script>
</html>
"""


class CodeReader(FrameReader):
    """What is taken from the frames of a camera that sees the page: the time that each shows."""

    against = "host clock"

    def __init__(self) -> None:
        super().__init__()
        self._zxing = need("zxingcpp", "calibrate")
        self._late_s: list[float] = []
        self._seen = 0

    def add(self, time_ns: int, time_s: float, pixels: NDArray[Any]) -> None:
        """Process the next frame, (H, W) uint8; others have no codes."""
        self._seen += 1
        if pixels.dtype != np.uint8:
            return
        formats = self._zxing.BarcodeFormat.QRCode
        for found in self._zxing.read_barcodes(np.ascontiguousarray(pixels), formats=formats):
            if (match := _TEXT.fullmatch(found.text)) and int(match[1]) < CODES:
                shown_s = (int(match[1]) + 0.5) * STEP_MS / 1e3
                late_s = time_ns % round(CYCLE_S * 1e9) / 1e9 - shown_s
                self.times_s.append(time_s)
                self._late_s.append((late_s + CYCLE_S / 2) % CYCLE_S - CYCLE_S / 2)

    def measure(self, positions: Signal | None = None) -> Lag:
        """Return the median latency, with the interval of the bootstrap over seconds; RefusedError: it is not known."""
        late = np.array(self._late_s)
        if len(late) < MIN_FRAMES:
            raise RefusedError(
                f"{len(late)} of {self._seen} frames show a code, {MIN_FRAMES} are needed; bring the page nearer"
            )
        low, high = np.quantile(late, [0.25, 0.75])
        if high - low > LARGEST_SCATTER_S:
            raise RefusedError(
                f"latencies of {low * 1e3:.0f} to {high * 1e3:.0f} ms; stamp the camera by the clock of the page's host"
            )
        blocks = np.floor((np.array(self.times_s) - self.times_s[0]) / BLOCK_S).astype(np.int64)
        groups = [late[blocks == block] for block in np.unique(blocks)]
        random = np.random.default_rng(0)
        drawn = random.integers(len(groups), size=(RESAMPLES, len(groups)))
        medians = [np.median(np.concatenate([groups[i] for i in row])) for row in drawn.tolist()]
        low, high = np.quantile(medians, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]).tolist()
        rounded_s = STEP_MS / 2e3  # a camera may see each code in the same part of its time
        return Lag(float(np.median(late)), low - rounded_s, high + rounded_s, float("nan"), len(late))
