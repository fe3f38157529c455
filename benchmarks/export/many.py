"""The memory and the time of an export of many small recordings, by their number. Both should be flat per recording.

    python -m benchmarks.export.many [--counts 100 500] [--media video]

Each recording has two seconds of joints and of one camera. Writes export_many.json and export_many.md.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import recordings
from benchmarks.export.memory import TORCH, measured
from benchmarks.report import ROOT, argument_parser, machine, write_results

SECONDS = 2


def main() -> None:
    """Measure each count and write the result."""
    parser = argument_parser(__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--media", default="none", choices=("none", "image", "video"))
    given = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "media": given.media, "counts": {}}
    with tempfile.TemporaryDirectory(prefix="robocache-many-") as scratch:
        folder = Path(scratch)
        (folder / "spec.yaml").write_text(json.dumps(recordings.spec(1)), encoding="utf-8")
        bags = [recordings.write(folder / "recording000", SECONDS, 1, "storage")]
        for number in range(1, max(given.counts)):
            bags.append(Path(shutil.copytree(bags[0], folder / f"recording{number:03d}", copy_function=_link)))
        result["torch"] = measured([sys.executable, "-c", TORCH], ROOT)["peak_anonymous_mb"]
        for count in given.counts:
            export = ["export", *map(str, bags[:count]), "--spec", str(folder / "spec.yaml"), "--media", given.media]
            export += ["--out", str(folder / f"set{count}"), "--jobs", "1"]
            result["counts"][count] = measured([sys.executable, "-m", "robocache_ros", *export], ROOT)
            shutil.rmtree(folder / f"set{count}")
    text = report(result)
    write_results(given.out, "export_many", result, text)
    print(text)


def report(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    on = result["machine"]
    rows = [
        f"| {count} | {one['peak_anonymous_mb']} MB | {one['peak_anonymous_mb'] - result['torch']} MB "
        f"| {one['seconds']} | {one['cpu_seconds'] / count:.3f} |"
        for count, one in result["counts"].items()
    ]
    return "\n".join(
        [
            "# Memory and time of an export of many recordings",
            "",
            f"`python -m benchmarks.export.many --media {result['media']}`: recordings of "
            f"{SECONDS} s, one after the other. {on['cores']} cores of an {on['cpu']}, Python {on['python']}, "
            f"{on['date']}. Seconds are those of the process.",
            "",
            "| recordings | peak anonymous memory | above `import torch` | seconds | CPU seconds each |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


if __name__ == "__main__":
    main()
