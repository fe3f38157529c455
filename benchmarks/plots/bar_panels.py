"""Panels of horizontal bars, with the published and the wanted figure of each as marks."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need

OURS, PEER, BOUND = "robocache_ros", "peer", "bound"
COLOURS = {OURS: "tab:blue", PEER: "tab:gray", BOUND: "lightsteelblue"}
MARKS = {"published": ("black", "-"), "wanted": ("tab:red", "--")}
MAX_BARS = 400
BAR_INCHES, TITLE_INCHES, LEGEND_INCHES = 0.24, 0.75, 0.3
LINEAR = 20.0  # a panel whose largest figure is more times its smallest one has a logarithmic scale
LESS_IS_BETTER = ("ms", "s", "us")


class Bar(NamedTuple):
    """A bar.

    Attributes:
        name: beside it.
        value: its length, above 0.
        kind: OURS, PEER or BOUND.
        marks: the published and the wanted figure, as far as there are some, by these names.
    """

    name: str
    value: float
    kind: str
    marks: Mapping[str, float]


class Panel(NamedTuple):
    """Bars of one unit."""

    title: str
    unit: str
    bars: Sequence[Bar]


def arguments(description: str | None, given: Sequence[str] | None) -> tuple[Path, Path]:
    """Return the folder of the results and that of the image, which the command line names."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--results", type=Path, required=True, help="folder of the results")
    parser.add_argument("--out", type=Path, required=True, help="folder of the image")
    args = parser.parse_args(given)
    return args.results, args.out


def results(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the results files of a folder that are there, by their names.

    Errors:
        RoboCacheError: none is there, or one is damaged.
    """
    found = {}
    for name in names:
        file = folder / f"{name}.json"
        if file.exists():
            try:
                found[name] = json.loads(file.read_text(encoding="utf-8"))
            except ValueError as error:
                raise RoboCacheError(f"{printable(file, 80)}: {printable(error, 60)}; measure again") from None
    if not found:
        raise RoboCacheError(f"{printable(folder, 80)}: no {' or '.join(f'{n}.json' for n in names)}; measure first")
    return found


def draw_panels(panels: Sequence[Panel], caption: str, path: Path) -> None:
    """Draw the panels one below the other, each on a scale of its own."""
    plt = need("matplotlib.pyplot", "export")
    heights = [*(BAR_INCHES * len(panel.bars) + TITLE_INCHES for panel in panels), LEGEND_INCHES]
    figure, axes = plt.subplots(
        len(heights),
        1,
        figsize=(10, sum(heights) + LEGEND_INCHES),
        gridspec_kw={"height_ratios": heights},
        constrained_layout=True,
    )
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, panel)
    axes[-1].axis("off")
    handles = _legend([bar for panel in panels for bar in panel.bars])
    axes[-1].legend(handles=handles, loc="center", ncol=len(handles), fontsize=9, frameon=False)
    figure.suptitle(caption, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _legend(bars: Sequence[Bar]) -> list[Any]:
    """The kinds of bars and marks that are drawn."""
    lines, patches = need("matplotlib.lines", "export"), need("matplotlib.patches", "export")
    kinds = [patches.Patch(color=COLOURS[kind], label=kind) for kind in COLOURS if any(b.kind == kind for b in bars)]
    return kinds + [
        lines.Line2D([], [], color=colour, linestyle=style, label=name)
        for name, (colour, style) in MARKS.items()
        if any(name in bar.marks for bar in bars)
    ]


def _draw(axis: Any, panel: Panel) -> None:
    bars = panel.bars
    every = [bar.value for bar in bars] + [mark for bar in bars for mark in bar.marks.values()]
    least, most = min(every), max(every)
    left = 0.0
    if most > LINEAR * least:
        left = 10.0 ** math.floor(math.log10(least * 0.7))
        axis.set_xscale("log")
    axis.set_xlim(left, most * (1.3 if left else 1.05))
    rows = range(len(bars))
    axis.barh(rows, [bar.value - left for bar in bars], left=left, color=[COLOURS[bar.kind] for bar in bars])
    for row, bar in zip(rows, bars, strict=True):
        for name, value in bar.marks.items():
            colour, style = MARKS[name]
            axis.plot([value, value], [row - 0.45, row + 0.45], color=colour, linestyle=style, linewidth=1.5)
        text = f"{bar.value:,.0f}" if bar.value >= 1000 else f"{bar.value:.3g}"
        axis.annotate(text, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    axis.set_yticks(rows, [bar.name for bar in bars], fontsize=8)
    axis.tick_params(axis="x", which="both", labelsize=8)
    axis.invert_yaxis()
    axis.grid(True, axis="x", which="major", alpha=0.3)
    axis.set_axisbelow(True)
    axis.set_title(panel.title, fontsize=9, loc="left")
    better = "less" if panel.unit in LESS_IS_BETTER else "more"
    axis.set_xlabel(f"{panel.unit} ({better} is better)", fontsize=8)
