"""Draws loading.json or loading_on_gpu.json as bars: `--results FOLDER --out FOLDER`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.loading.__main__ import BOUND as BOUND_PREFIX
from benchmarks.plots.bar_panels import BOUND, OURS, PEER, Bar, Panel, arguments, draw_panels, results

UNITS = ("trajectories/s", "frames/s")  # of the rows of loading_on_gpu.json that are compared


def main(given: Sequence[str] | None = None) -> None:
    """Draw the files that are in the folder."""
    folder, out = arguments(__doc__, given)
    for name, record in results(folder, ("loading", "loading_on_gpu")).items():
        machine = record["machine"]
        if name == "loading":
            shown, about = of_cases(record["cases"]), f"Python {machine['python']}"
        else:
            shown, about = of_rows(record["rows"]), f"{machine['gpu']}, torch {machine['torch']}"
        if shown:
            caption = f"Batches of datasets ({machine['cores']} cores, {about}, {machine['date'][:10]})"
            draw_panels(shown, caption, out / f"{name}.png")


def of_cases(cases: Mapping[str, Mapping[str, Any]]) -> list[Panel]:
    """Return a panel for each dataset, with what is wanted beside the best peer as a mark of our best form."""
    found = []
    for case in cases.values():
        rates = case["rates"]
        compared = case.get("peer")
        goal = {case["best"]: {"wanted": compared["wanted"] * rates[compared["best"]]}} if compared else {}
        bars = [Bar(name, rate, _kind(name), goal.get(name, {})) for name, rate in rates.items() if rate > 0]
        found.append(Panel(case["title"], case["unit"], bars))
    return found


def of_rows(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return a panel for each unit."""
    titles = dict(zip(UNITS, ("Trajectories of three streams", "Jpeg images of 256x256"), strict=True))
    found = []
    for unit, title in titles.items():
        mine = [row for row in rows if row["unit"] == unit and row["measured"] > 0]
        kinds = [
            PEER if row["what"].startswith("DataLoader") else BOUND if "alone" in row["what"] else OURS for row in mine
        ]
        bars = [Bar(row["what"], row["measured"], kind, {}) for row, kind in zip(mine, kinds, strict=True)]
        found += [Panel(title, unit, bars)] if bars else []
    return found


def _kind(name: str) -> str:
    return OURS if name.startswith("ours") else BOUND if name.startswith(BOUND_PREFIX) else PEER


if __name__ == "__main__":
    main()
