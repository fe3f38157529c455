"""The parts of the benchmark of exports: beside peers and encoders, reading, processes, formats and commands."""

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

from benchmarks import recordings
from benchmarks.report import json_of, middle
from robocache_ros.extras import need
from robocache_ros.formats.registry import known_formats

# An export against forge-robotics and against the encoders alone, in turn in one run.


SCRIPTS = Path(__file__).parent
# Name -> settings of the encoder. Names of codecs: ours, and FFmpeg's for forge.
CASES = {
    "x264 veryfast g2": {"codec": "h264", "name": "libx264", "crf": 23, "preset": "veryfast", "gop": 2},
    "x264 medium g12": {"codec": "h264", "name": "libx264", "crf": 23, "preset": "medium", "gop": 12},
    "AV1 preset 12 g2": {"codec": "av1", "name": "libsvtav1", "crf": 30, "preset": "12", "gop": 2},
}
JOINTS = "joints only"
WANTED = {"x264 veryfast g2": 1.5, "x264 medium g12": 1.5, "AV1 preset 12 g2": 1.15, JOINTS: 5.0}  # times forge
WANTED_OF_ENCODERS = 1.2  # times their wall time at most


class Peers:
    """Measures one round after the other.

    Args:
        folder: for the recordings and the datasets.
        forge: Python of an environment with forge-robotics; None: it is left out.
        seconds: length of the recording with cameras.
        minutes: length of the recording of joints.
    """

    def __init__(self, folder: Path, forge: str | None, seconds: float, minutes: float) -> None:
        self._folder, self._forge = folder, forge
        self._cameras = recordings.write(folder / "cameras", seconds, cameras=2)
        self._joints = recordings.write(folder / "joints", 60 * minutes, cameras=0)
        self.runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self._number = 0

    def round(self) -> None:
        """Run every case once: the export, then its peers."""
        for name, case in CASES.items():
            settings = {key: case[key] for key in ("crf", "preset", "gop")}
            self._add(name, "robocache", self._export(self._cameras, 2, {"codec": case["codec"], **settings}))
            if self._forge:
                self._add(name, "forge", self._converted(self._cameras, 2, {"codec": case["name"], **settings}))
            encoders = {"bag": str(self._cameras), "cameras": 2, "codec": case["codec"], **settings}
            self._add(name, "encoders alone", _run("encoders", encoders))
        self._add(JOINTS, "robocache", self._export(self._joints, 0, {}))
        if self._forge:
            self._add(JOINTS, "forge", self._converted(self._joints, 0, {}))

    def result(self) -> dict[str, Any]:
        """By case and peer the medians of rows/s, wall and CPU seconds; and the ratios, of the pairs of each round."""
        return {name: _summary(name, by_peer) for name, by_peer in self.runs.items()}

    def _add(self, case: str, peer: str, found: dict[str, Any]) -> None:
        self.runs.setdefault(case, {}).setdefault(peer, []).append(found)

    def _out(self) -> str:
        self._number += 1
        return str(self._folder / f"set{self._number}")

    def _export(self, bag: Path, cameras: int, options: dict[str, Any]) -> dict[str, Any]:
        wanted = {"bags": [str(bag)], "spec": recordings.spec(cameras), "out": self._out(), "jobs": 1}
        return _run("export", {**wanted, "options": options})

    def _converted(self, bag: Path, cameras: int, settings: dict[str, Any]) -> dict[str, Any]:
        images = {f"observation.images.camera{k}": recordings.camera_topic(k) for k in range(cameras)}
        (file,) = bag.glob("*.mcap")
        wanted = {
            "file": str(file),
            "out": self._out(),
            "fields": {"observation.state": "/joint_states", "action": "/command", **images},
            "primary": next(iter(images), "action"),
            "fps": recordings.spec(cameras)["rate_hz"],
            **settings,
        }
        assert self._forge
        return json_of(self._forge, SCRIPTS / "run_forge.py", json.dumps(wanted))


def _run(kind: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Run a part of `benchmarks.export.run` in a process."""
    return json_of(sys.executable, "benchmarks.export.run", kind, json.dumps(wanted))


def _summary(name: str, by_peer: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    peers = {
        peer: {
            "rows": runs[0]["rows"],
            "rows_per_s": round(middle([run["rows"] / run["seconds"] for run in runs]), 1),
            "seconds": middle([run["seconds"] for run in runs]),
            "cpu_seconds": middle([run["cpu_seconds"] for run in runs]),
        }
        for peer, runs in by_peer.items()
    }
    ours = by_peer["robocache"]
    found: dict[str, Any] = {"peers": peers}
    if "forge" in by_peer:
        pairs = zip(ours, by_peer["forge"], strict=True)
        rates = [a["rows"] / a["seconds"] / (b["rows"] / b["seconds"]) for a, b in pairs]
        found |= {"times_forge": middle(rates), "times_forge_wanted": WANTED[name]}
    if "encoders alone" in by_peer:
        for unit in ("seconds", "cpu_seconds"):
            pairs = zip(ours, by_peer["encoders alone"], strict=True)
            found[f"times_{unit}_of_encoders"] = middle([a[unit] / b[unit] for a, b in pairs])
        found["times_seconds_of_encoders_wanted"] = WANTED_OF_ENCODERS
    return found


# Parts of an export: reading beside `rosbags`, several processes, several formats in one pass.


JOBS = 2
COMPRESSIONS = ("none", "lz4", "storage", "message", "sqlite3")  # storage: zstd chunks; message: zstd messages


def reading(folder: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """MB/s of all messages by compression, and how many times that of `rosbags`."""
    bags = {name: recordings.write(folder / f"read-{name}", seconds, 1, name) for name in COMPRESSIONS}
    runs: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {name: [] for name in bags}
    for _ in range(rounds):
        for name, bag in bags.items():
            ours, theirs = (_run("reader", {"reader": reader, "bag": str(bag)}) for reader in ("robocache", "rosbags"))
            runs[name].append((ours, theirs))
    return {
        name: {
            "robocache_mb_s": round(middle([ours["bytes"] / ours["cpu_seconds"] / 1e6 for ours, _ in found])),
            "rosbags_mb_s": round(middle([their["bytes"] / their["cpu_seconds"] / 1e6 for _, their in found])),
            "times_rosbags": middle([theirs["cpu_seconds"] / ours["cpu_seconds"] for ours, theirs in found]),
        }
        for name, found in runs.items()
    }


def processes(folder: Path, count: int, seconds: float) -> dict[str, Any]:
    """Seconds of an export of short recordings of one camera to AV1, by the number of processes."""
    bags = [recordings.write(folder / f"short{k}", seconds, 1) for k in range(count)]
    found = {}
    for jobs in (1, JOBS):
        done = _exported(bags, 1, folder / f"jobs{jobs}", {}, jobs)
        found[f"jobs_{jobs}"] = {key: round(done[key], 2) for key in ("seconds", "cpu_seconds")}
    ratio = found["jobs_1"]["seconds"] / found["jobs_2"]["seconds"]
    return {"recordings": count, "seconds_each": seconds, **found, "times_faster": round(ratio, 2)}


def one_pass(folder: Path, seconds: float) -> dict[str, Any]:
    """Seconds of each format alone, and of all formats in one pass, with the same codec and two jobs."""
    bag = recordings.write(folder / "formats", seconds, 2)
    alone = {}
    for name in known_formats():
        done = _exported([bag], 2, folder / f"alone-{name}", {"formats": [name], "codec": "h264"}, JOBS)
        alone[name] = {key: round(done[key], 2) for key in ("seconds", "cpu_seconds")}
    done = _exported([bag], 2, folder / "together", {"formats": list(known_formats()), "codec": "h264"}, JOBS)
    return {
        "recording_s": seconds,
        "codec": "h264",
        "alone": alone,
        "together": {key: round(done[key], 2) for key in ("seconds", "cpu_seconds")},
        "times_the_slowest": _times_the_largest("seconds", done, alone),
        "times_the_slowest_cpu": _times_the_largest("cpu_seconds", done, alone),
        "times_the_slowest_wanted": 1.3,
    }


def _times_the_largest(unit: str, done: dict[str, Any], alone: dict[str, dict[str, float]]) -> float:
    return round(float(done[unit]) / max(one[unit] for one in alone.values()), 2)


def devices(folder: Path, bag: Path, spec: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """Seconds of an export with the CPU and with a GPU: of a recording, and of two raw cameras that are resized."""
    cameras = recordings.spec(2)
    for name in ("camera0", "camera1"):
        cameras["streams"][name]["image"] = {"size": [224, 224], "resize": "area"}
    cases = {bag.name: (bag, str(spec)), "two cameras": (recordings.write(folder / "raw", seconds, 2), cameras)}
    found: dict[str, Any] = {}
    for case, (recording, its_spec) in cases.items():
        runs: dict[str, list[dict[str, Any]]] = {"cpu": [], "cuda": []}
        for number in range(rounds):
            for device, done in runs.items():
                wanted = {"bags": [str(recording)], "spec": its_spec, "jobs": 1, "options": {}, "device": device}
                wanted["out"] = str(folder / f"{case}-{device}-{number}")
                done.append(_run("export", wanted))
        found[case] = {
            device: {key: middle([one[key] for one in done]) for key in ("seconds", "cpu_seconds")}
            for device, done in runs.items()
        }
        found[case]["times_faster"] = round(found[case]["cpu"]["seconds"] / found[case]["cuda"]["seconds"], 2)
    return found


def _exported(bags: list[Path], cameras: int, out: Path, options: dict[str, Any], jobs: int = 1) -> dict[str, Any]:
    wanted = {
        "bags": [str(bag) for bag in bags],
        "spec": recordings.spec(cameras),
        "out": str(out),
        "jobs": jobs,
        "options": options,
    }
    return _run("export", wanted)


# `robocache info` and `robocache export` of a recording, each in a separate process, as a user runs them.


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
        started = time.perf_counter()
        command = [sys.executable, "-m", "robocache_ros", *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        process.append(time.perf_counter() - started)
        line = re.search(r"in\s+([\d.]+)\s+s\s+\(([\d.]+)\s+x\s+real\s+time", done.stdout)
        if line:
            conversion.append(float(line[1]))
            times.append(float(line[2]))
    found = {"process_s": middle(process[1:]), "process_best_s": round(min(process[1:]), 3)}
    if conversion:
        found |= {"conversion_s": middle(conversion[1:]), "conversion_best_s": round(min(conversion[1:]), 3)}
        found |= {"times_real_time": middle(times[1:]), "times_real_time_best": max(times[1:])}
    return found


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
