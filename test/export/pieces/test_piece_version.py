"""A change of the bytes of pieces is noticed: exports would mix pieces of the code before and after it."""

from __future__ import annotations

import json
from pathlib import Path

from robocache_ros.exporter.pieces import PIECE_VERSION
from test.export.pieces.piece_digests import RECORDED, piece_digests

RECORD = "python -m test.export.pieces.piece_digests"


def test_the_bytes_of_pieces_change_only_with_their_version(tmp_path: Path) -> None:
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
