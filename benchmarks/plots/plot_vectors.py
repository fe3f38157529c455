"""Draw the scaling curves of vectors.json: `python -m benchmarks.plots.plot_vectors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.plots.curves import draw_curves

PANELS = {
    "batches": "batch size B",
    "samples": "samples S",
    "targets": "targets T",
    "width": "columns D",
    "streams": "streams N",
}


def main() -> None:
    """Draw vectors.png."""
    caption = "fuse, bfloat16; where not varied B 256, S 100, T 50, D 32, N 1"
    draw_curves(__doc__, "vectors", PANELS, caption, _draw)


def _draw(axis: Any, key: str, record: Mapping[str, Any]) -> None:
    rate = record["copy rate TB/s"] * 1e6  # bytes per microsecond
    rows = [row for row in record["curves"] if row["of"] == key]
    sizes = [row["size"] for row in rows]
    axis.loglog(sizes, [row["us"] for row in rows], "o-", markersize=3, label="measured")
    axis.loglog(sizes, [row["bytes"] / rate for row in rows], "k:", label="bytes at the copy rate")
    axis.set_ylim(0.1, None)


if __name__ == "__main__":
    main()
