"""Draw the scaling curves of spatial.json: `python -m robocache_ros.bench.ops.plot_spatial`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from robocache_ros.bench.ops.device_time import RESULTS
from robocache_ros.extras import need


def main() -> None:
    """Draw spatial.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="Folder of spatial.json.")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="Folder of the image.")
    arguments = parser.parse_args()
    plt = need("matplotlib.pyplot", "export")
    record = json.loads((arguments.results / "spatial.json").read_text())
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.6), constrained_layout=True)
    for axis, key, title in zip(axes, ("points", "width"), ("random points", "width of a 16:9 image, px"), strict=True):
        rows = [row for row in record["curves"] if key in row]
        for mode in (name for name in rows[0] if name != key):
            axis.loglog([row[key] for row in rows], [row[mode] for row in rows], "o-", markersize=3, label=mode)
        axis.set(xlabel=title, ylim=(1, None))
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(frameon=False)
    axes[0].set_ylabel("microseconds")
    machine = record["machine"]
    figure.suptitle(
        f"points -> 128^3 voxels; rgb8 -> 3 x 224 x 224 bfloat16 ({machine['gpu']}, {machine['date'][:10]})"
    )
    figure.savefig(arguments.out / "spatial.png", dpi=110)


if __name__ == "__main__":
    main()
