"""Measures trainings on this machine's first GPU, or on the CPU, and writes training.json and training.md.

python -m robocache_ros.bench.training --out benchmarks/results     # less than 5 minutes on a GPU
python -m robocache_ros.bench.training --out /tmp/bench --quick     # tiny, to see that it runs
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from robocache_ros.bench.training import against_dataloader, published_step, transformer_steps
from robocache_ros.bench.training.measured import Row, Size
from robocache_ros.bench.training.mixed_rate_episodes import write_episodes

FULL = Size(episodes=100, steps=500, seconds=6.0, workers=max(1, (os.cpu_count() or 2) - 2), tiny=False)
QUICK = Size(episodes=1, steps=1, seconds=0.02, workers=0, tiny=True)
PARTS = ("step", "large", "medium", "diffusion")


def main(given: list[str] | None = None) -> int:
    """Run the parts and write the results; 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for training.json and training.md")
    parser.add_argument("--quick", action="store_true", help="tiny policies and data: no figure means anything")
    parser.add_argument("--part", action="append", choices=PARTS, help="this part only; may be repeated")
    args = parser.parse_args(given)
    size = QUICK if args.quick else FULL
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    rows: list[Row] = []
    failed = 0
    took_s: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        episodes = Path(folder) / "episodes.hdf5"
        nbytes = write_episodes(episodes, size.episodes)
        for name, measure in _parts(size, device, episodes).items():
            if args.part and name not in args.part:
                continue
            start = time.perf_counter()
            try:
                rows += measure()
            except Exception as error:  # the other parts are measured
                traceback.print_exc()
                rows.append(Row(name, "failed", None, "", note=str(error)[:200]))
                failed = 1
            took_s[name] = round(time.perf_counter() - start, 1)
            print(f"{name}: {took_s[name]} s", file=sys.stderr, flush=True)
    machine = _machine(device)
    record = {"machine": machine, "quick": args.quick, "size": asdict(size), "data_bytes": nbytes, "took_s": took_s}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "training.json").write_text(json.dumps({**record, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
    text = _markdown(rows, machine, quick=args.quick)
    (args.out / "training.md").write_text(text)
    print(json.dumps({**record, "rows": [asdict(row) for row in rows]}))
    print(text)
    return failed


def _parts(size: Size, device: torch.device, episodes: Path) -> dict[str, Callable[[], list[Row]]]:
    small = 4
    return {
        "step": lambda: published_step.measure(size, device),
        "large": lambda: transformer_steps.measure(size, device, episodes, "act-101m", small if size.tiny else 64),
        "medium": lambda: transformer_steps.measure(size, device, episodes, "act-13m", small if size.tiny else 32),
        "diffusion": lambda: against_dataloader.measure(size, device, episodes),
    }


def _machine(device: torch.device) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "none"
    return {
        "gpu": gpu,
        "cores": os.cpu_count(),
        "load": [round(each, 1) for each in os.getloadavg()],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _markdown(rows: list[Row], machine: dict[str, Any], *, quick: bool) -> str:
    lines = [
        "# Training",
        "",
        f"GPU: {machine['gpu']}, {machine['cores']} cores, torch {machine['torch']}, {machine['date']}. "
        "Published figures are of an H100.",
        *(["", "A quick run with tiny policies: no figure means anything."] if quick else []),
    ]
    part = ""
    for row in rows:
        if row.part != part:
            part = row.part
            sources = sorted({each.source for each in rows if each.part == part and each.source})
            lines += ["", f"## {part}", "", *(f"Published in {source}." for source in sources)]
            lines += ["", "| | measured | published | wanted | |", "|---|---|---|---|---|"]
        value = "not measured" if row.value is None else f"{row.value:,.3g} {row.unit}"
        if row.value is not None and row.value >= 1000:
            value = f"{row.value:,.0f} {row.unit}"
        lines.append(f"| {row.what} | {value} | {row.published} | {row.wanted} | {row.note} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
