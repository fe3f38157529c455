"""Several formats in one pass: what they share is made once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from robocache_ros.formats import pictures
from robocache_ros.formats.pictures import JPEG_QUALITY
from robocache_ros.formats.pieces import CONTENTS
from robocache_ros.formats.registry import known_formats
from robocache_ros.formats.video import VideoFile
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export


class Encoded:
    """The calls of the encoders."""

    def __init__(self) -> None:
        self.jpegs = self.frames = self.films = 0

    def take(self) -> tuple[int, int, int]:
        """Return the images as jpeg, the frames of videos and the videos since the last call."""
        found = self.jpegs, self.frames, self.films
        self.jpegs = self.frames = self.films = 0
        return found


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Encoded:
    calls = Encoded()
    save = Image.Image.save

    def saved(image: Image.Image, file: Any, kind: str | None = None, **options: Any) -> None:
        calls.jpegs += kind == "JPEG" and options.get("quality") == JPEG_QUALITY  # not a thumbnail of the report
        save(image, file, kind, **options)

    class Counted(VideoFile):
        def __init__(self, *given: Any) -> None:
            calls.films += 1
            super().__init__(*given)

        def write(self, image: Any) -> None:
            calls.frames += 1
            super().write(image)

    monkeypatch.setattr(Image.Image, "save", saved)
    monkeypatch.setattr(pictures, "VideoFile", Counted)
    return calls


def test_formats_in_one_pass_encode_each_image_once(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, encoded: Encoded
) -> None:
    def calls(*formats: str) -> tuple[int, int, int]:
        export(bags[1:], spec, tmp_path / "-".join(formats), DatasetOptions(formats=formats, codec="h264"))
        return encoded.take()

    jpegs, *none = calls("rlds")
    assert jpegs > 50
    assert none == [0, 0]
    no_jpegs, *video = calls("lerobot")
    assert no_jpegs == 0
    assert calls(*known_formats()) == (jpegs, *video)


def test_the_dataset_is_flushed_to_disk_and_its_pieces_are_not(
    bags: list[Path], spec: FusionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    flush = os.fsync

    def watched(handle: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        flush(handle)

    monkeypatch.setattr(os, "fsync", watched)
    export(bags[1:], spec, tmp_path / "set", DatasetOptions(media="none"))

    names = {path.name for path in flushed}
    assert {"info.json", "report.html"} <= names
    assert CONTENTS not in names
