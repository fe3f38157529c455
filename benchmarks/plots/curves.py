"""Curves of a benchmark's results: one figure of several panels."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.ops.device_time import RESULTS
from robocache_ros.extras import need

Draw = Callable[[Any, str, Mapping[str, Any]], None]  # axes, the key of a panel, the results


def draw_curves(description: str | None, name: str, panels: Mapping[str, str], caption: str, draw: Draw) -> None:
    """Draw NAME.png from NAME.json, in the folders that the command line names.

    Args:
        description: help of the command.
        name: of the results.
        panels: the label of each panel's x axis, by the panel's key.
        caption: of the figure; machine and date follow it.
        draw: draws the curves of a panel.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"Folder of {name}.json.")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="Folder of the image.")
    arguments = parser.parse_args()
    plt = need("matplotlib.pyplot", "export")
    record = json.loads((arguments.results / f"{name}.json").read_text())
    size = (max(11, 3.6 * len(panels)), 3.5)
    figure, axes = plt.subplots(1, len(panels), figsize=size, constrained_layout=True)
    for axis, (key, label) in zip(axes, panels.items(), strict=True):
        draw(axis, key, record)
        axis.set_xlabel(label)
        axis.grid(True, which="major", alpha=0.3)
    axes[0].set_ylabel("microseconds")
    axes[0].legend(frameon=False)
    machine = record["machine"]
    figure.suptitle(f"{caption} ({machine['gpu']}, {machine['date'][:10]})")
    figure.savefig(arguments.out / f"{name}.png", dpi=110)
