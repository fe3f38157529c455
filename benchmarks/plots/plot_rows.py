"""Draws the rows of training.json or formats.json as bars: `--results FOLDER --out FOLDER`.

Times and rates are drawn. A wanted or published ratio of two of them is a mark at so many times the second one; shares
are in the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.plots.bar_panels import MARKS, MAX_BARS, OURS, PEER, Bar, Panel, arguments, draw_panels, results

UNITS = ("ms", "samples/s", "s")
CAPTIONS = {"training": "Training", "formats": "Batches of each format"}
Row = Mapping[str, Any]


def main(given: Sequence[str] | None = None) -> None:
    """Draw the files that are in the folder."""
    folder, out = arguments(__doc__, given)
    for name, record in results(folder, tuple(CAPTIONS)).items():
        rows = record["rows"][:MAX_BARS]
        if shown := panels(rows):
            machine = record["machine"]
            about = f"{machine['cores']} cores, torch {machine['torch']}, {machine['date'][:10]}"
            gpu = "" if machine["gpu"] == "none" else f"{machine['gpu']}, "
            draw_panels(shown, f"{CAPTIONS[name]} ({gpu}{about})", out / f"{name}.png")


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Return a panel for each part and unit."""
    found = []
    for part in dict.fromkeys(row["part"] for row in rows):
        mine = [row for row in rows if row["part"] == part and row["value"] is not None and row["value"] > 0]
        for unit in dict.fromkeys(row["unit"] for row in mine if row["unit"] in UNITS):
            bars = [
                Bar(row["what"], row["value"], PEER if re.search(r"\bDataLoader", row["what"]) else OURS, marks)
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


if __name__ == "__main__":
    main()
