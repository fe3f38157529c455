"""`robocache info` and `robocache export` of a recording, each in a separate process, as a user runs them."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.bench.export.machine import middle
from robocache_ros.extras import need


def commands(bag: Path, spec: Path, rounds: int) -> dict[str, Any]:
    """Times of the commands, and the quality of the video.

    `conversion_s` is what the command prints: the time from opening the recording until the dataset is complete, with
    its report, after the libraries are loaded. `process_s` is the time of the complete process, with the start of
    Python and the import of torch. `video_psnr_db` compares the decoded video with the images that the PNG export
    stores, tick by tick: what the video's encoder loses with its default settings.
    """
    with tempfile.TemporaryDirectory() as folder:
        export = ["export", str(bag), "--spec", str(spec), "--out", f"{folder}/set", "--overwrite"]
        jobs = {
            "info": ["info", str(bag)],
            "export, no images": [*export, "--media", "none"],
            "export, PNG images": [*export, "--media", "image"],
            "export, video": export,
        }
        return {
            "bag": bag.name,
            "jobs": {name: measured(job, rounds) for name, job in jobs.items()},
            "video_psnr_db": video_psnr(bag, spec, Path(folder)),
        }


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
