"""Draws results: `python -m benchmarks.plots [NAME …] --results FOLDER --out FOLDER`. Without names all that are there.

Results that are compared are bars beside published and wanted figures; others are curves, or rates over GPUs.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.published import SCALING
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need

Record = Mapping[str, Any]
Row = Mapping[str, Any]


def main(given: Sequence[str] | None = None) -> None:
    """Draw NAME.png from NAME.json, for each of the names.

    Errors:
        RoboCacheError: no results are there, or some are damaged.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DRAW)}")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder of the images")
    args = parser.parse_args(given)
    wanted = [name for name in args.names or DRAW if name in DRAW]
    found = {name: file for name in wanted if (file := args.results / f"{name}.json").exists()}
    if not found:
        names = printable(", ".join(args.names or DRAW), 120)
        raise RoboCacheError(f"{printable(args.results, 80)}: no results of {names}; measure first")
    for name, file in found.items():
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RoboCacheError(f"{printable(file, 80)}: {printable(error, 60)}; measure again") from None
        DRAW[name](record, args.out / f"{name}.png")


# Panels of horizontal bars, with the published and the wanted figure of each as marks.

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
        _draw_bars(axis, panel)
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


def _draw_bars(axis: Any, panel: Panel) -> None:
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


# Rows of results as bars: times and rates. A wanted or published ratio of two of them is a mark at so many times the
# second one; shares are in the table.

UNITS = ("ms", "samples/s", "s")
PEERS = re.compile(r"\b(DataLoader|LeRobotDataset)\b")


def draw_rows(record: Record, path: Path) -> None:
    """Draw the rows of trainings, or of batches of each format."""
    if shown := panels(record["rows"][:MAX_BARS]):
        machine = record["machine"]
        about = f"{machine['cores']} cores, torch {machine['torch']}, {machine['date'][:10]}"
        gpu = "" if machine["gpu"] == "none" else f"{machine['gpu']}, "
        title = {"formats": "Batches of each format", "cameras": "Training on videos"}.get(path.stem, "Training")
        draw_panels(shown, f"{title} ({gpu}{about})", path)


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Return a panel for each part and unit."""
    found = []
    for part in dict.fromkeys(row["part"] for row in rows):
        mine = [row for row in rows if row["part"] == part and row["value"] is not None and row["value"] > 0]
        for unit in dict.fromkeys(row["unit"] for row in mine if row["unit"] in UNITS):
            bars = [
                Bar(
                    row["what"],
                    row["value"],
                    PEER if re.search(r"\b(DataLoader|LeRobotDataset)", row["what"]) else OURS,
                    marks,
                )
                for row in mine
                if row["unit"] == unit
                for marks in [_marks(row, mine)]
            ]
            found.append(Panel(part, unit, bars))
    return found


def _marks(row: Row, rows: Sequence[Row]) -> dict[str, float]:
    """The published and the wanted figure of a row: its own, or those of its ratio to another row."""
    found = {name: value for name in MARKS if (value := _number(row[name], row["unit"])) is not None}
    for ratio in rows:
        name, _, base = ratio["what"].rpartition(" / ")
        if ratio["unit"] != "x" or name != row["what"]:
            continue
        others = [each for each in rows if each["unit"] == row["unit"]]
        bases = others[:1] if base == "first" else [each for each in others if each["what"].endswith(base)]
        for mark in MARKS if bases else ():
            if (times := _number(ratio[mark], "x")) is not None:
                found[mark] = times * bases[0]["value"]
    return found


def _number(text: str, unit: str) -> float | None:
    """The number of a text such as `0.22 ms`; None if there is none, or a range, or one of another unit."""
    match = re.fullmatch(r"([\d.]+)(?: (\S+))?", text.replace(",", ""))
    return float(match[1]) if match and match[2] in (None, unit) else None


# Loaders beside those of others.

LOADER_UNITS = {"trajectories/s": "Trajectories of three streams", "frames/s": "Jpeg images of 256x256"}


def draw_loading(record: Record, path: Path) -> None:
    """Draw the loaders on a CPU, by dataset, or on a GPU, by unit."""
    if "rows" in record:
        machine, shown = record["machine"], of_rows(record["rows"])
        about = f"{machine['gpu']}, torch {machine['torch']}, {machine['date'][:10]}"
    else:
        shown = of_cases(record["cases"])
        machine = next((case["machine"] for case in record["cases"].values()), dict[str, Any]())
        about = f"Python {machine['python']}" if machine else ""
    if shown:
        draw_panels(shown, f"Batches of datasets ({machine['cores']} cores, {about})", path)


def of_cases(cases: Mapping[str, Mapping[str, Any]]) -> list[Panel]:
    """Return a panel for each dataset, with what is wanted beside the best peer as a mark of our best form."""
    found = []
    for case in cases.values():
        rates = case["rates"]
        compared = case.get("peer")
        goal = {case["best"]: {"wanted": compared["wanted"] * rates[compared["best"]]}} if compared else {}
        bars = [Bar(name, rate, _kind(name), goal.get(name, {})) for name, rate in rates.items() if rate > 0]
        found.append(Panel(f"{case['title']}, {case['machine']['date'][:10]}", case["unit"], bars))
    return found


def of_rows(rows: Sequence[Row]) -> list[Panel]:
    """Return a panel for each unit."""
    found = []
    for unit, title in LOADER_UNITS.items():
        mine = [row for row in rows if row["unit"] == unit and row["measured"] > 0]
        kinds = [
            PEER if row["what"].startswith("DataLoader") else BOUND if "alone" in row["what"] else OURS for row in mine
        ]
        bars = [Bar(row["what"], row["measured"], kind, {}) for row, kind in zip(mine, kinds, strict=True)]
        found += [Panel(title, unit, bars)] if bars else []
    return found


def _kind(name: str) -> str:
    return OURS if name.startswith("ours") else BOUND if name.startswith("bound: ") else PEER


# What a user waits for.


def draw_waits(record: Record, path: Path) -> None:
    """Draw the processor time of commands, in the groups that were measured beside each other."""
    titles = {
        "robocache --help": "The start of Python and of the command line",
        "robocache info": f"A recording of {record['gigabytes']:g} GB",
        "robocache report": f"A recording of {record['minutes']:g} minutes",
    }
    found, machine = [], record["machine"]
    for _, rows in groupby(record["rows"], key=itemgetter("rounds")):
        times = {row["what"]: row["cpu_s"] for row in rows}
        bars = [Bar(name, time_s, OURS if "robocache" in name else PEER, {}) for name, time_s in times.items()]
        found.append(Panel(next((titles[name] for name in times if name in titles), ""), "s", bars))
    draw_panels(
        found, f"Processor time ({machine['cores']} cores, Python {machine['python']}, {machine['date']})", path
    )


# Rates and efficiencies over the number of GPUs.

WHAT = ("loading", "preprocessing", "training")
# Efficiency in % with weak scaling, by the number of GPUs.
WANTED = {"loading": {2: 99.0}, "preprocessing": {2: 99.0}}
PUBLISHED = {"preprocessing": SCALING}
Lines = dict[str, dict[int, float]]  # label -> number of GPUs -> samples per second


def lines_of(rows: Sequence[Row], what: str) -> Lines:
    """Return the rates of one kind of work; of several with the same texts and number the last one counts."""
    mine = [row for row in rows if row["what"] == what]
    several = len({(row["policy"], row["device"]) for row in mine}) > 1
    found: Lines = {}
    for row in mine:
        label = f"{row['mode']}, {row['policy']}, {row['device']}" if several else row["mode"]
        found.setdefault(label, {})[row["processes"]] = row["samples_per_s"]
    return found


def efficiencies(rates: Mapping[int, float]) -> dict[int, float]:
    """Return the rate per process over that of one alone, in %; empty without a run of one."""
    alone = rates.get(1)
    return {count: 100 * rates[count] / (alone * count) for count in sorted(rates)} if alone else {}


def draw_scaling(record: Record, path: Path) -> None:
    """Draw the rates above the efficiencies, a column for each kind of work."""
    if not record["rows"]:
        return
    plt = need("matplotlib.pyplot", "export")
    shown = {what: lines for what in WHAT if (lines := lines_of(record["rows"], what))}
    figure, axes = plt.subplots(2, len(shown), figsize=(3.8 * len(shown), 6.5), squeeze=False, constrained_layout=True)
    for column, (what, lines) in enumerate(shown.items()):
        counts = sorted({count for rates in lines.values() for count in rates})
        _draw_rates(axes[0, column], lines, counts)
        _draw_efficiencies(axes[1, column], what, lines, counts)
        axes[0, column].set_title(what, fontsize=10)
        for axis in axes[:, column]:
            axis.set_xlim(0.5, counts[-1] + 0.5)
            axis.set_xticks(counts)
            axis.grid(True, alpha=0.3)
            axis.legend(frameon=False, fontsize=8)
        axes[1, column].set_xlabel("GPUs")
    axes[0, 0].set_ylabel("samples/s")
    axes[1, 0].set_ylabel("efficiency, %")
    machine, policy = record["machine"], record["rows"][0]["policy"]
    figure.suptitle(f"Scaling of {policy} ({machine['gpu']}, torch {machine['torch']}, {machine['date'][:10]})")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_rates(axis: Any, lines: Lines, counts: Sequence[int]) -> None:
    for label, rates in lines.items():
        points = sorted(rates.items())
        axis.plot(*zip(*points, strict=True), "o-" if label.startswith("weak") else "s-", label=label)
    alone = next((rates[1] for rates in lines.values() if 1 in rates), None)
    if alone:
        axis.plot([1, counts[-1]], [alone, alone * counts[-1]], "k:", label="ideal")
    axis.set_ylim(0, None)
    axis.yaxis.set_major_formatter(lambda rate, _: f"{rate:,.0f}")


def _draw_efficiencies(axis: Any, what: str, lines: Lines, counts: Sequence[int]) -> None:
    for label, rates in lines.items():
        if found := efficiencies(rates):
            axis.plot(list(found), list(found.values()), "o-" if label.startswith("weak") else "s-", label=label)
    axis.axhline(100, color="black", linestyle=":", label="ideal")
    for name, goals in (("published", PUBLISHED.get(what, {})), ("wanted", WANTED.get(what, {}))):
        points = [(count, share) for count, share in goals.items() if count in counts]
        if points:
            symbol, size = ("x", 50) if name == "published" else ("_", 400)
            places, shares = zip(*points, strict=True)
            colour, _ = MARKS[name]
            axis.scatter(places, shares, s=size, marker=symbol, color=colour, zorder=3, label=f"{name}, weak")
    lowest = min([100.0, *(share for rates in lines.values() for share in efficiencies(rates).values())])
    axis.set_ylim(max(0.0, lowest // 10 * 10 - 30), 105)  # with space for the legend below the lines


# Curves of operations over the size of their input.

VECTORS = {
    "batches": "batch size B",
    "samples": "samples S",
    "targets": "targets T",
    "width": "columns D",
    "streams": "streams N",
}
SPATIAL = {"points": "random points", "width": "width of a 16:9 image, px"}


def _draw_curves(
    record: Record, path: Path, labels: Mapping[str, str], caption: str, draw: Callable[..., None]
) -> None:
    """Draw a panel for each label, which is that of its x axis."""
    plt = need("matplotlib.pyplot", "export")
    size = (max(11, 3.6 * len(labels)), 3.5)
    figure, axes = plt.subplots(1, len(labels), figsize=size, constrained_layout=True)
    for axis, (key, label) in zip(axes, labels.items(), strict=True):
        draw(axis, key, record)
        axis.set_xlabel(label)
        axis.grid(True, which="major", alpha=0.3)
    axes[0].set_ylabel("microseconds")
    axes[0].legend(frameon=False)
    machine = record["machine"]
    figure.suptitle(f"{caption} ({machine['gpu']}, {machine['date'][:10]})")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_vectors(record: Record, path: Path) -> None:
    """Draw the time of fusing over each size of its input, beside the time to copy as many bytes."""
    _draw_curves(record, path, VECTORS, "fuse, bfloat16; where not varied B 256, S 100, T 50, D 32, N 1", _draw_fuse)


def _draw_fuse(axis: Any, key: str, record: Record) -> None:
    rate = record["copy rate TB/s"] * 1e6  # bytes per microsecond
    rows = [row for row in record["curves"] if row["of"] == key]
    sizes = [row["size"] for row in rows]
    axis.loglog(sizes, [row["us"] for row in rows], "o-", markersize=3, label="measured")
    axis.loglog(sizes, [row["bytes"] / rate for row in rows], "k:", label="bytes at the copy rate")
    axis.set_ylim(0.1, None)


def draw_spatial(record: Record, path: Path) -> None:
    """Draw the time of voxels over points, and of an image over its width."""
    _draw_curves(record, path, SPATIAL, "points -> 128^3 voxels; rgb8 -> 3 x 224 x 224 bfloat16", _draw_modes)


def _draw_modes(axis: Any, key: str, record: Record) -> None:
    rows = [row for row in record["curves"] if key in row]
    for mode in (name for name in rows[0] if name != key):
        axis.loglog([row[key] for row in rows], [row[mode] for row in rows], "o-", markersize=3, label=mode)
    axis.set_ylim(1, None)
    axis.legend(frameon=False)


# The results that are drawn, by the names of their files.
DRAW: Mapping[str, Callable[[Record, Path], None]] = {
    "training": draw_rows,
    "training_transformers": draw_rows,
    "cameras": draw_rows,
    "formats": draw_rows,
    "loading": draw_loading,
    "loading_on_gpu": draw_loading,
    "scaling": draw_scaling,
    "vectors": draw_vectors,
    "spatial": draw_spatial,
    "waits": draw_waits,
}

if __name__ == "__main__":
    try:
        main()
    except RoboCacheError as error:
        sys.exit(f"benchmarks: {error}")
