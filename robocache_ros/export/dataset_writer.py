"""What every dataset format shares: the options of an export, its two steps, and the registry of formats."""

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

# A format by name: the module and name of its `DatasetFormat`, imported when it is asked for.
FORMATS = {"lerobot": "robocache_ros.export.lerobot.dataset:LEROBOT"}
LIBRARIES = {"rosbags.rosbag2": "bags", "pyarrow.parquet": "export", "PIL.Image": "export", "jinja2": "export"}
MEDIA = ("video", "image", "none")
ON_INVALID = ("spec", "split", "hold", "mask", "fail")
TEXT_LIMIT = 1000  # characters of the task and of the robot's name
_NOT_TEXT = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of characters, ends of lines and paragraphs


@dataclass(frozen=True)
class ExportOptions:
    """How a recording becomes a dataset."""

    format: str = "lerobot"
    visibility: str = "ideal"  # ideal: every sample is seen; deployed: what the robot would have seen
    media: str = "video"  # cameras as video files, as PNG images in the tables, or not at all
    task: str = "robot task"  # what the robot does, in words; policies are conditioned on it
    robot_type: str = "unknown"
    on_invalid: str = "spec"  # for every stream; spec: what the spec says of each
    trim: bool = True  # where invalid ticks are masked, leave out those at either end
    min_frames: int = 2  # shorter episodes are left out
    min_valid: float = (
        0.25  # share of a recording's ticks in episodes, from the first one on, below which it is refused
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
    """Writes the piece of one recording into a folder that is empty; a dataset is merged from such pieces.

    Args:
        folder: of the piece; `recording.json`, `recording.npz` and `done.json` in it are not the format's.
        layout: the columns of the frames.
        options: how the recording becomes a dataset. The piece must not depend on the task and the robot's name.
    """

    def __init__(self, folder: Path, layout: Layout, options: ExportOptions) -> None: ...

    def begin_episode(self) -> None:
        """Start an episode."""

    def write(self, frames: Frames) -> None:
        """The next ticks of the episode."""

    def end_episode(self) -> None:
        """Close the episode."""

    def finish(self) -> None:
        """Complete the files."""

    def close(self) -> None:
        """Release what is open, finished or not."""


class Merge(Protocol):
    """Puts a dataset together from pieces: a pure function of their bytes and their order.

    Args:
        folder: empty; the dataset when `write` has returned.
        layout: the columns of the frames.
        options: how the recordings become a dataset.
        pieces: folders, each complete; one may be there several times.
        names: of each piece, its recording, for errors.
    """

    def __init__(
        self, folder: Path, layout: Layout, options: ExportOptions, pieces: Sequence[Path], names: Sequence[str]
    ) -> None: ...

    @property
    def stored(self) -> dict[str, str]:
        """How each stream of images or voxels is stored, in words."""

    def write(self, extra: dict[str, Any]) -> None:
        """Write the dataset; `extra` goes into meta/robocache.json."""


@dataclass(frozen=True)
class DatasetFormat:
    """The two steps of a format."""

    piece_writer: type[PieceWriter]
    merge: type[Merge]


def load_format(name: str) -> DatasetFormat:
    """A format; imports the libraries that it and a recording's reader need."""
    module, _, attribute = FORMATS[name].partition(":")
    found: DatasetFormat = getattr(import_module(module), attribute)
    for library, extra in LIBRARIES.items():
        need(library, extra)
    return found
