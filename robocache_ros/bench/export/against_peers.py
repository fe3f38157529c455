"""An export against forge-robotics and against the encoders alone, in turn in one run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from robocache_ros.bench.export import camera_recording
from robocache_ros.bench.export.machine import middle, told

SCRIPTS = Path(__file__).parent
FORGE_VERSION = "0.2.0"
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
        self._cameras = camera_recording.write(folder / "cameras", seconds, cameras=2)
        self._joints = camera_recording.write(folder / "joints", 60 * minutes, cameras=0)
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
            module = "robocache_ros.bench.export.run_encoders"
            self._add(name, "encoders alone", told(sys.executable, module, json.dumps(encoders)))
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
        wanted = {"bags": [str(bag)], "spec": camera_recording.spec(cameras), "out": self._out(), "jobs": 1}
        return told(sys.executable, "robocache_ros.bench.export.run_export", json.dumps({**wanted, "options": options}))

    def _converted(self, bag: Path, cameras: int, settings: dict[str, Any]) -> dict[str, Any]:
        images = {f"observation.images.camera{k}": camera_recording.camera_topic(k) for k in range(cameras)}
        (file,) = bag.glob("*.mcap")
        wanted = {
            "file": str(file),
            "out": self._out(),
            "fields": {"observation.state": "/joint_states", "action": "/command", **images},
            "primary": next(iter(images), "action"),
            "fps": camera_recording.spec(cameras)["rate_hz"],
            **settings,
        }
        assert self._forge
        return told(self._forge, SCRIPTS / "run_forge.py", json.dumps(wanted))


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
