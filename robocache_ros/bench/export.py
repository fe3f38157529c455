"""`robocache info` and `robocache export` of a recording, each in a separate process, as a user runs them.

    python -m robocache_ros.bench.export --bag test/data/panda_lift --spec config/panda_lift.yaml

Writes export.json. `conversion_s` is what the command prints: the time from opening the recording until the dataset is
complete, with its report, after the libraries are loaded. `process_s` is the time of the complete process, with the
start of Python and the import of torch. `video_psnr_db` compares the decoded video with the images that the PNG export
stores, tick by tick: what the video's encoder loses with its default settings.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.extras import need

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path("benchmarks/results")


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bag", type=Path, default=ROOT / "test" / "data" / "panda_lift")
    parser.add_argument("--spec", type=Path, default=ROOT / "config" / "panda_lift.yaml")
    parser.add_argument("--rounds", type=int, default=5, help="Runs of each job, after one that fills the disk cache.")
    parser.add_argument("--out", type=Path, default=RESULTS, help="Folder of the result.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        export = ["export", str(options.bag), "--spec", str(options.spec), "--out", f"{folder}/set", "--overwrite"]
        jobs = {
            "info": ["info", str(options.bag)],
            "export, no images": [*export, "--media", "none"],
            "export, PNG images": [*export, "--media", "image"],
            "export, video": export,
        }
        result = {
            "machine": machine(),
            "bag": options.bag.name,
            "jobs": {name: measured(job, options.rounds) for name, job in jobs.items()},
            "video_psnr_db": video_psnr(options.bag, options.spec, Path(folder)),
        }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "export.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, told in [*result["jobs"].items(), *result["video_psnr_db"].items()]:
        print(f"{name:20s} {told}")


def measured(arguments: list[str], rounds: int) -> dict[str, Any]:
    """Median and minimum of some runs, after one that fills the disk cache."""
    process, conversion, times = [], [], []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        command = [sys.executable, "-m", "robocache_ros", *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        process.append(time.perf_counter() - begun)
        line = re.search(r"in\s+([\d.]+)\s+s\s+\(([\d.]+)\s+x\s+real\s+time", done.stdout)
        if line:
            conversion.append(float(line[1]))
            times.append(float(line[2]))
    told = {"process_s": middle(process[1:]), "process_best_s": round(min(process[1:]), 3)}
    if conversion:
        told |= {"conversion_s": middle(conversion[1:]), "conversion_best_s": round(min(conversion[1:]), 3)}
        told |= {"times_real_time": middle(times[1:]), "times_real_time_best": max(times[1:])}
    return told


def video_psnr(bag: Path, spec: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """By camera, the peak signal-to-noise ratio of the frames of the video against the images, in dB."""
    for media in ("image", "video"):
        out = ["--out", str(folder / media), "--media", media]
        command = [sys.executable, "-m", "robocache_ros", "export", str(bag), "--spec", str(spec), *out]
        subprocess.run(command, check=True, capture_output=True)
    parquet, picture, av = need("pyarrow.parquet", "export"), need("PIL.Image", "export"), need("av", "export")
    features = json.loads((folder / "video" / "meta" / "info.json").read_text(encoding="utf-8"))["features"]
    found = {}
    for key in (name for name, feature in features.items() if feature["dtype"] == "video"):
        files = sorted((folder / "image" / "data").rglob("*.parquet"))
        images = [row["bytes"] for file in files for row in parquet.read_table(file, columns=[key])[key].to_pylist()]
        (video,) = (folder / "video" / "videos" / key).rglob("*.mp4")
        with av.open(str(video)) as container:
            errors = [
                np.mean(
                    (frame.to_ndarray(format="rgb24") - np.asarray(picture.open(io.BytesIO(image)), np.float64)) ** 2
                )
                for frame, image in zip(container.decode(video=0), images, strict=True)
            ]
            codec = container.streams.video[0].codec_context.codec.canonical_name
        each = 10 * np.log10(255**2 / np.maximum(errors, 1e-9))
        found[key] = {
            "codec": codec,
            "frames": len(errors),
            "all_frames": round(float(10 * np.log10(255**2 / np.mean(errors))), 2),  # of their mean squared error
            "median": round(float(np.median(each)), 2),
            "worst_frame": round(float(each.min()), 2),
        }
    return found


def middle(values: list[float]) -> float:
    """The median, rounded for reading."""
    return round(statistics.median(values), 3)


def machine() -> dict[str, Any]:
    """The machine of the measurement, and its load before."""
    names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


if __name__ == "__main__":
    main()
