"""A change of the bytes of pieces is noticed: exports would mix pieces of the code before and after it."""

from __future__ import annotations

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from robocache_ros.exporter.pieces import LIBRARIES, PIECE_VERSION
from robocache_ros.exporter.planned_recording import Moment, PlannedRecording
from robocache_ros.formats.dataset_folder import digests_of, files_of
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import LIFT, SPEC
from test.export.sensor_recording import sensor_recording, sensor_spec
from test.exporting import export

# The SHA-256 of the files of two pieces, as code and libraries of this machine make them.

RECORDED = Path(__file__).with_name("piece_digests.json")


def piece_digests(folder: Path) -> dict[str, Any]:
    """Make a piece with images, voxels and poses, and one with depth, windows and outcomes; return their digests."""
    start, stop = Moment(3_900_000_000, relative=True), Moment(5_000_000_000, relative=True)  # with a gap
    panda = PlannedRecording(LIFT, start=start, stop=stop)
    sensors = sensor_recording(folder / "sensors", seed=1)
    formats = ("lerobot", "robomimic")
    video = DatasetOptions(formats=formats, codec="h264", compare_visibility=True, action="delta")
    pixels = DatasetOptions(formats=formats, media="image", on_invalid="mask", action="next-observation")
    made = {
        "panda": _digests(folder / "panda", panda, load_spec(SPEC), video),
        "sensors": _digests(folder / "pixels", sensors, sensor_spec(outcomes=True, actions=False), pixels),
    }
    return {"version": PIECE_VERSION, "libraries": {name: version(name) for name in LIBRARIES}, "files": made}


def _digests(folder: Path, recording: Any, spec: Any, options: DatasetOptions) -> dict[str, str]:
    export([recording], spec, folder / "set", options, pieces=folder / "pieces", report=False)
    (contents,) = (folder / "pieces").glob("*/*/contents.json")
    return digests_of(contents.parent, files_of(contents.parent))


RECORD = "python -m test.export.test_piece_version"


def test_the_bytes_of_pieces_change_only_with_their_version(tmp_path):
    recorded, found = json.loads(RECORDED.read_text(encoding="utf-8")), piece_digests(tmp_path)
    assert recorded["version"] == PIECE_VERSION, f"PIECE_VERSION was raised: run {RECORD}"
    same_libraries = recorded["libraries"] == found["libraries"]
    for piece, files in found["files"].items():
        assert sorted(files) == sorted(recorded["files"][piece]), piece
        for name, digest in files.items():
            # Encoders of other versions give other images; the numbers are the same with any.
            if same_libraries or name.startswith("columns/") or name == "recording.npz":
                assert digest == recorded["files"][piece][name], (
                    f"{piece}: {name} changed: raise PIECE_VERSION in exporter/pieces.py, then run {RECORD}"
                )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        RECORDED.write_text(json.dumps(piece_digests(Path(name)), indent=1) + "\n", encoding="utf-8")
