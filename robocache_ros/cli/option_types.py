"""The arguments and options that several commands have."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Visibility(str, Enum):
    """Which samples a tick sees."""

    ideal = "ideal"
    deployed = "deployed"


class Media(str, Enum):
    """How camera images are stored in a dataset."""

    video = "video"
    image = "image"
    none = "none"


class OnInvalid(str, Enum):
    """What an export does with ticks at which a stream has no value."""

    spec = "spec"
    split = "split"  # type: ignore[assignment]  # also a method of str
    hold = "hold"
    mask = "mask"
    fail = "fail"


SpecFile = Annotated[Path, typer.Option("--spec", "-s", help="The fusion spec (YAML).")]
Recording = Annotated[Path, typer.Argument(help="A rosbag2 folder, or a .mcap, .db3 or ROS 1 .bag file.")]
Sees = Annotated[
    Visibility,
    typer.Option(
        help="ideal: use every sample; deployed: leave out samples that the robot would have received too late."
    ),
]
