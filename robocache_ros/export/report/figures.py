"""Figures of the report, as self-contained SVG."""

from __future__ import annotations

import base64

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.dataset.row_columns import runs

STATES = {0: "invalid", 1: "aligned", 2: "held"}
TRIMMED = 3
_WORST_FIRST = np.array(
    [3, 0, 2, 0]
)  # severity by state: invalid, then held, then aligned; trimmed ticks are drawn separately
COLUMNS = 1000  # columns of the timeline; a column shows the worst state of its ticks
BINS = 40
WIDTH, HEIGHT = 232, 84  # size of a histogram, including labels


def state_bar(states: NDArray[np.uint8], leading: int, trailing: int) -> str:
    """Draw the (T,) states of a stream over time as colored runs; trimmed ticks are pale."""
    total = len(states)
    drawn = states.astype(np.int64)
    drawn[:leading] = TRIMMED
    drawn[total - trailing :] = TRIMMED
    if total > COLUMNS:
        edges = np.linspace(0, total, COLUMNS + 1).astype(int)
        worst = [part[np.argmax(_WORST_FIRST[part])] for part in np.split(drawn, edges[1:-1])]
        drawn = np.array(worst)
    names = {**STATES, TRIMMED: "trimmed"}
    scale = 1000 / max(len(drawn), 1)
    rects = [
        f'<rect class="{names[state]}" x="{start * scale:.2f}" width="{(stop - start) * scale:.2f}" height="10"/>'
        for start, stop, state in runs(drawn)
        if state != 1
    ]
    ground = '<rect class="aligned" width="1000" height="10"/>'
    return f'<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none">{ground}{"".join(rects)}</svg>'


def histogram(values: NDArray[np.float64], *, unit: str, mark: float | None = None, limit: float | None = None) -> str:
    """Draw a histogram with logarithmic height, so that a single outlier among thousands of samples is visible.

    mark: a value to mark, such as the median. limit: values above it are counted in the last bar.
    """
    if not len(values):
        return ""
    low, high = float(values.min()), float(values.max())
    if limit is not None:
        high = min(high, limit)
    if high - low < 1e-6 * max(abs(high), 1e-3):
        low, high = low - 0.5, high + 0.5
    inside = values[values <= high]
    counts, edges = np.histogram(inside, BINS, (low, high))
    beyond = int((values > high).sum())
    ground, top = HEIGHT - 16, 4
    bars = [*counts.tolist(), *([0, beyond] if beyond else [])]
    step = WIDTH / len(bars)
    tallest = np.log1p(max(bars))
    parts = []
    for index, count in enumerate(bars):
        if count:
            height = max(2.0, (ground - top) * float(np.log1p(count)) / float(tallest))
            last = beyond and index == len(bars) - 1
            label = f"over {high:.4g} {unit}" if last else f"{edges[index]:.4g} to {edges[index + 1]:.4g} {unit}"
            parts.append(
                f'<rect class="{"over" if last else "count"}" x="{index * step + 0.4:.2f}" y="{ground - height:.2f}" '
                f'width="{step - 0.8:.2f}" height="{height:.2f}"><title>{label}: {count}</title></rect>'
            )
    end = len(counts) * step
    if mark is not None and low <= mark <= high:
        at = (mark - low) / (high - low) * end
        parts.append(f'<line class="mark" x1="{at:.2f}" x2="{at:.2f}" y1="0" y2="{ground}"/>')
    parts.append(f'<line class="ground" x1="0" x2="{WIDTH}" y1="{ground}" y2="{ground}"/>')
    parts.append(f'<text x="0" y="{HEIGHT - 3}">{low:.4g} {unit}</text>')
    anchor = f"{high:.4g} {unit}" + (f"  ·  {beyond} beyond" if beyond else "")
    parts.append(f'<text x="{WIDTH}" y="{HEIGHT - 3}" text-anchor="end">{anchor}</text>')
    return f'<svg class="histogram" viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(parts)}</svg>'


def axis_marks(duration_s: float) -> list[tuple[float, str]]:
    """Return (position in percent, label) of about eight round times."""
    step = next((s for s in _round_steps() if duration_s / s <= 10), duration_s)
    count = int(duration_s / step + 1e-9)
    return [(100 * i * step / duration_s, f"{i * step:g} s") for i in range(count + 1)]


def _round_steps() -> list[float]:
    return [m * 10.0**e for e in range(-3, 6) for m in (1, 2, 5)]


def jpeg_url(file: bytes) -> str:
    """Return a JPEG file as a data URL."""
    return "data:image/jpeg;base64," + base64.b64encode(file).decode()
