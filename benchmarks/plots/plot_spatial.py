"""Draw the scaling curves of spatial.json: `python -m benchmarks.plots.plot_spatial`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.plots.curves import draw_curves

PANELS = {"points": "random points", "width": "width of a 16:9 image, px"}


def main() -> None:
    """Draw spatial.png."""
    draw_curves(__doc__, "spatial", PANELS, "points -> 128^3 voxels; rgb8 -> 3 x 224 x 224 bfloat16", _draw)


def _draw(axis: Any, key: str, record: Mapping[str, Any]) -> None:
    rows = [row for row in record["curves"] if key in row]
    for mode in (name for name in rows[0] if name != key):
        axis.loglog([row[key] for row in rows], [row[mode] for row in rows], "o-", markersize=3, label=mode)
    axis.set_ylim(1, None)
    axis.legend(frameon=False)


if __name__ == "__main__":
    main()
