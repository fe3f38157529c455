"""The results of benchmarks of loading and training as files, which are complete at any time."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from robocache_ros.bench.result_files import replace
from robocache_ros.bench.training.measured import Row


def machine() -> dict[str, Any]:
    """What is measured on."""
    return {
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "cores": os.cpu_count(),
        "load": [round(each, 1) for each in os.getloadavg()],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def write(folder: Path, name: str, title: str, record: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Replace `name`.json and `name`.md in a folder."""
    text = json.dumps({**record, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
    replace(folder / f"{name}.json", text)
    replace(folder / f"{name}.md", as_markdown(title, record, rows))


def as_markdown(title: str, record: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Return a table for each part, in which failures are rows."""
    about = record["machine"]
    published = " Published figures are of an H100." if any(row.published for row in rows) else ""
    lines = [
        f"# {title}",
        "",
        f"GPU: {about['gpu']}, {about['cores']} cores, load {about['load'][0]:g}, torch {about['torch']}, "
        f"{about['date']}.{published}",
        *(["", "A quick run with tiny policies and data: no figure means anything."] if record["quick"] else []),
    ]
    for part in dict.fromkeys(row.part for row in rows):
        mine = [row for row in rows if row.part == part]
        sources = sorted({row.source for row in mine if row.source})
        lines += ["", f"## {part}", *(f"\nPublished in {source}." for source in sources)]
        lines += ["", "| | measured | published | wanted | |", "|---|---|---|---|---|"]
        lines += [
            f"| {row.what} | {_value(row)} | {row.published} | {row.wanted} | {_cell(row.note)} |" for row in mine
        ]
    return "\n".join(lines) + "\n"


def _value(row: Row) -> str:
    if row.value is None:
        return "not measured"
    return f"{row.value:,.0f} {row.unit}" if row.value >= 1000 else f"{row.value:,.3g} {row.unit}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
