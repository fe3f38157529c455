"""Draw the scaling curves of results/vectors.json: `python benchmarks/plot_vectors.py`, with matplotlib installed."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
TITLES = {
    "batches": "batch size B",
    "samples": "samples S",
    "targets": "targets T",
    "width": "columns D",
    "streams": "streams N",
}


def main() -> None:
    """Write docs/images/vectors.png."""
    record = json.loads((HERE / "results" / "vectors.json").read_text())
    rate = record["copy rate TB/s"] * 1e6  # bytes per microsecond
    figure, axes = plt.subplots(1, len(TITLES), figsize=(18, 3.4), constrained_layout=True)
    for axis, (name, title) in zip(axes, TITLES.items(), strict=True):
        rows = [row for row in record["curves"] if row["of"] == name]
        sizes = [row["size"] for row in rows]
        axis.loglog(sizes, [row["us"] for row in rows], "o-", markersize=3, label="measured")
        axis.loglog(sizes, [row["bytes"] / rate for row in rows], "k:", label="bytes at the copy rate")
        axis.set(xlabel=title, ylim=(0.1, None))
        axis.grid(True, which="major", alpha=0.3)
    axes[0].set_ylabel("microseconds")
    axes[0].legend(frameon=False)
    machine = record["machine"]
    figure.suptitle(
        f"fuse, bfloat16; where not varied B 256, S 100, T 50, D 32, N 1 ({machine['gpu']}, {machine['date'][:10]})"
    )
    figure.savefig(HERE.parent / "docs" / "images" / "vectors.png", dpi=110)


if __name__ == "__main__":
    main()
