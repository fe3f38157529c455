"""Draw the scaling curves of vectors.json: `python -m robocache_ros.bench.ops.plot_vectors`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from robocache_ros.bench.ops.device_time import RESULTS
from robocache_ros.extras import need

TITLES = {
    "batches": "batch size B",
    "samples": "samples S",
    "targets": "targets T",
    "width": "columns D",
    "streams": "streams N",
}


def main() -> None:
    """Draw vectors.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="Folder of vectors.json.")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="Folder of the image.")
    arguments = parser.parse_args()
    plt = need("matplotlib.pyplot", "export")
    record = json.loads((arguments.results / "vectors.json").read_text())
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
    figure.savefig(arguments.out / "vectors.png", dpi=110)


if __name__ == "__main__":
    main()
