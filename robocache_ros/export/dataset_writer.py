"""Parts shared by all dataset formats: export options, interfaces of the two export steps, format registry."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.spec.layout import Layout

# Format name -> module and name of its `DatasetFormat`, imported on first use.
FORMATS = {"lerobot": "robocache_ros.export.lerobot.dataset:LEROBOT"}
LIBRARIES = {"rosbags.rosbag2": "bags", "pyarrow.parquet": "export", "PIL.Image": "export", "jinja2": "export"}
MEDIA = ("video", "image", "none")
ON_INVALID = ("spec", "split", "hold", "mask", "fail")
TEXT_LIMIT = 1000  # characters of the task and of the robot's name
_NOT_TEXT = ("Cc", "Cs", "Zl", "Zp")  # control characters, surrogates, line and paragraph separators


@dataclass(frozen=True)
class ExportOptions:
    """Options for the conversion of recordings to a dataset."""

    format: str = "lerobot"
    visibility: str = "ideal"  # ideal: ticks use every sample; deployed: only samples that had arrived on the robot
    media: str = "video"  # store camera images as video files, as PNG images in the tables, or not at all
    task: str = "robot task"  # description of the task, on which policies are conditioned
    robot_type: str = "unknown"
    on_invalid: str = "spec"  # applies to every stream; spec: use the value in the spec for each stream
    trim: bool = True  # if invalid ticks are masked, omit those at both ends
    min_frames: int = 2  # shorter episodes are omitted
    min_valid: float = (
        0.25  # minimum share of ticks in episodes, from the first episode on; below it the recording is refused
    )

    def __post_init__(self) -> None:
        for name, choices in (
            ("format", tuple(FORMATS)),
            ("media", MEDIA),
            ("visibility", ("ideal", "deployed")),
            ("on_invalid", ON_INVALID),
        ):
            if getattr(self, name) not in choices:
                raise RoboCacheError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(choices)}")
        if self.min_frames < 1:
            raise RoboCacheError(f"min_frames: {self.min_frames} is below 1; an episode has one frame at least")
        if not 0 <= self.min_valid <= 1:
            raise RoboCacheError(f"min_valid: {self.min_valid:g} is not a share; use 0 to 1")
        if not self.task.strip():
            raise RoboCacheError("task: is empty; say in words what the robot does")
        for name, text in (("task", self.task), ("robot_type", self.robot_type)):
            if len(text) > TEXT_LIMIT:
                raise RoboCacheError(f"{name}: {len(text):,} characters; use {TEXT_LIMIT:,} at most")
            if any(unicodedata.category(character) in _NOT_TEXT for character in text):
                raise RoboCacheError(
                    f"{name}: {printable(text, 60)!r} is not a line of text; remove its control characters"
                )


class PieceWriter(Protocol):
    """Writes the piece of one recording into an empty folder. `Merge` combines pieces into a dataset.

    Args:
        folder: of the piece. Other code writes `recording.json`, `recording.npz` and `done.json` in it.
        layout: the columns of the frames.
        options: of the export. The piece must not depend on the task or the robot's name.
    """

    def __init__(self, folder: Path, layout: Layout, options: ExportOptions) -> None: ...

    def begin_episode(self) -> None:
        """Start an episode."""

    def write(self, frames: Frames) -> None:
        """Write the next ticks of the episode."""

    def end_episode(self) -> None:
        """Close the episode."""

    def finish(self) -> None:
        """Complete the files."""

    def close(self) -> None:
        """Release open resources, whether or not the piece is finished."""


class Merge(Protocol):
    """Merges pieces into a dataset. The result depends only on the bytes of the pieces and their order.

    Args:
        folder: empty; contains the dataset after `write` returns.
        layout: the columns of the frames.
        options: of the export.
        pieces: folders of complete pieces; a folder may occur several times.
        names: name of the recording of each piece, for error messages.
    """

    def __init__(
        self, folder: Path, layout: Layout, options: ExportOptions, pieces: Sequence[Path], names: Sequence[str]
    ) -> None: ...

    @property
    def stored(self) -> dict[str, str]:
        """Describe how each stream of images or voxels is stored."""

    def write(self, extra: dict[str, Any]) -> None:
        """Write the dataset; `extra` goes into meta/robocache.json."""


@dataclass(frozen=True)
class DatasetFormat:
    """The two steps of a format."""

    piece_writer: type[PieceWriter]
    merge: type[Merge]


def load_format(name: str) -> DatasetFormat:
    """Load a format by name. Imports the libraries that the format and the recording reader need."""
    module, _, attribute = FORMATS[name].partition(":")
    found: DatasetFormat = getattr(import_module(module), attribute)
    for library, extra in LIBRARIES.items():
        need(library, extra)
    return found
