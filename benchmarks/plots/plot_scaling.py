"""Draws scaling.json as rates and efficiencies over the number of GPUs: `--results FOLDER --out FOLDER`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plots.bar_panels import MARKS, arguments, results
from benchmarks.published import SCALING
from robocache_ros.extras import need

WHAT = ("loading", "preprocessing", "training")
# Efficiency in % with weak scaling, by the number of GPUs.
WANTED = {"loading": {2: 99.0}, "preprocessing": {2: 99.0}, "training": {2: 96.0}}
PUBLISHED = {"preprocessing": SCALING}
Lines = dict[str, dict[int, float]]  # label -> number of GPUs -> samples per second


def main(given: Sequence[str] | None = None) -> None:
    """Draw scaling.png."""
    folder, out = arguments(__doc__, given)
    record = results(folder, ("scaling",))["scaling"]
    if record["rows"]:
        draw(record, out / "scaling.png")


def lines_of(rows: Sequence[Mapping[str, Any]], what: str) -> Lines:
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


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Draw the rates above the efficiencies, a column for each kind of work."""
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
    for name, goals in (("published", PUBLISHED.get(what, {})), ("wanted", WANTED[what])):
        points = [(count, share) for count, share in goals.items() if count in counts]
        if points:
            symbol, size = ("x", 50) if name == "published" else ("_", 400)
            places, shares = zip(*points, strict=True)
            colour, _ = MARKS[name]
            axis.scatter(places, shares, s=size, marker=symbol, color=colour, zorder=3, label=f"{name}, weak")
    lowest = min([100.0, *(share for rates in lines.values() for share in efficiencies(rates).values())])
    axis.set_ylim(max(0.0, lowest // 10 * 10 - 30), 105)  # with space for the legend below the lines


if __name__ == "__main__":
    main()
