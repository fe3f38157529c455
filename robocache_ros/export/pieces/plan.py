"""The plan of an export: an immutable list of recordings, and the options that determine the bytes of their pieces."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import robocache_ros
from robocache_ros.bags.message_files import definitions_in
from robocache_ros.export.episodes.episode_file import episode_file, episode_text
from robocache_ros.export.episodes.labels import Labels
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.pieces.piece_writer import Encodings
from robocache_ros.export.recordings.planned_recording import PlannedRecording
from robocache_ros.spec import FusionSpec, Layout

# Options that do not affect pieces, or only through `Plan.encodings`.
_OF_THE_DATASET = ("task", "robot_type", "formats", "media", "depth", "voxels", "msg_path")
# Libraries that compute or encode the contents of a piece.
_LIBRARIES = ("numpy", "torch", "pyarrow", "av", "pillow")


@dataclass(frozen=True)
class Plan:
    """The inputs of an export.

    Attributes:
        recordings: in the given order, which is that of the episodes; a recording may occur several times.
            Paths are complete recordings.
        spec: the resolved spec, with the changes from the options.
        options: of the export.
        encodings: of each image stream, sorted; the pieces contain images in these encodings.
        device: converts images and clouds: `cpu` or `cuda:<index>`. Its results are the same, except with `jpeg: gpu`.
    """

    recordings: tuple[PlannedRecording, ...]
    spec: FusionSpec
    options: ExportOptions
    encodings: Encodings
    device: str = "cpu"

    @property
    def distinct(self) -> tuple[PlannedRecording, ...]:
        """The recordings, and parts of them, that become a piece; each once."""
        return tuple(dict.fromkeys(recording.frames_of for recording in self.recordings))

    @cached_property
    def layout(self) -> Layout:
        """The columns of the pieces: those of the spec, with the actions that the options ask for."""
        return Layout(Labels(self.spec, self.options).spec)

    @cached_property
    def jpeg_decoder(self) -> str:
        """The decoder of jpeg images with `jpeg: gpu`, whose pixels may depend on its version and on the GPU."""
        if self.options.jpeg == "cpu":
            return ""
        versions = f"torchvision {_version('torchvision')}, CUDA {torch.version.cuda}"
        return f"nvJPEG on {torch.cuda.get_device_name(self.device)} ({versions})"

    def key(self, recording: PlannedRecording, files: Sequence[dict[str, Any]]) -> str:
        """Return the name of the piece of a recording: a hash of all inputs that determine its bytes.

        Args:
            recording: notes contain its name, and its metadata.yaml determines how files are read. Its task and its
                outcome do not affect the piece.
            files: name, size and SHA-256 of its storage files.
        """
        metadata = recording.path / "metadata.yaml"
        decides = {
            **self._of_all_recordings,
            "engine": engine(),  # of this process
            "recording": recording.path.name,
            "part": [recording.start, recording.stop],
            "files": list(files),
            "episodes": self._episodes_of(recording.path),
            "metadata": hashlib.sha256(metadata.read_bytes()).hexdigest() if metadata.is_file() else "",
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    @cached_property
    def _of_all_recordings(self) -> dict[str, Any]:
        """What determines the bytes of the pieces of all recordings."""
        options = {name: value for name, value in asdict(self.options).items() if name not in _OF_THE_DATASET}
        given = definitions_in(self.options.msg_path, [feed.type for feed in self.spec.feeds])
        return {
            "spec": self.spec.to_dict(),
            "options": options,
            "encodings": self.encodings,
            "nvjpeg": self.jpeg_decoder,
            "definitions": {name: text for name, (text, _) in sorted(given.items())},
        }

    def _episodes_of(self, path: Path) -> str:
        """Return a hash of the file that states the episodes of a recording; empty without one."""
        stated = episode_file(path) if self.options.episode_file and not self.options.episode_topic else None
        return hashlib.sha256(episode_text(stated).encode()).hexdigest() if stated else ""


@cache
def engine() -> dict[str, str]:
    """Return the versions of the code that makes a piece, and a hash of the sources, which can change in a checkout."""
    package = Path(robocache_ros.__file__).parent
    sources = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        sources.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes())
    libraries = {name: _version(name) for name in _LIBRARIES}
    return {
        "robocache_ros": robocache_ros.__version__,
        "sources": sources.hexdigest(),
        "python": sys.version,
    } | libraries


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""
