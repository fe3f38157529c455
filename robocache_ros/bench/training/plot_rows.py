"""Draws the rows of training.json or formats.json as bars: `--results FOLDER --out FOLDER`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need

UNITS = ("ms", "samples/s", "s")  # of what is drawn; shares and ratios are in the table
BAR_INCHES, MAX_BARS = 0.22, 400


def main(given: list[str] | None = None) -> None:
    """Draw the file that is in the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="folder of the results")
    parser.add_argument("--out", type=Path, required=True, help="folder of the image")
    args = parser.parse_args(given)
    files = [path for path in (args.results / "training.json", args.results / "formats.json") if path.exists()]
    if not files:
        raise RoboCacheError(f"{printable(args.results, 80)}: no training.json or formats.json; measure first")
    for file in files:
        rows = [row for row in json.loads(file.read_text(encoding="utf-8"))["rows"] if _is_drawn(row)][:MAX_BARS]
        if rows:
            draw(rows, args.out / f"{file.stem}.png")


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a panel of bars per part, on logarithmic scales."""
    plt = need("matplotlib.pyplot", "export")
    parts = {part: [row for row in rows if row["part"] == part] for part in dict.fromkeys(r["part"] for r in rows)}
    heights = [len(each) + 3 for each in parts.values()]
    figure, axes = plt.subplots(
        len(parts),
        1,
        figsize=(9, BAR_INCHES * sum(heights)),
        gridspec_kw={"height_ratios": heights},
        squeeze=False,
        constrained_layout=True,
    )
    for axis, (part, mine) in zip(axes[:, 0], parts.items(), strict=True):
        bars = axis.barh([row["what"] for row in mine], [row["value"] for row in mine], log=True)
        axis.bar_label(bars, [f"{row['value']:,.3g}" for row in mine], padding=2, fontsize=7)
        axis.invert_yaxis()
        axis.margins(x=0.15)
        axis.tick_params(labelsize=7)
        axis.set_title(part, fontsize=8, loc="left")
        axis.set_xlabel(mine[0]["unit"], fontsize=7)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _is_drawn(row: Mapping[str, Any]) -> bool:
    return row["value"] is not None and row["value"] > 0 and row["unit"] in UNITS


if __name__ == "__main__":
    main()
