"""Arguments and options shared by several commands."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Optional, cast

import typer

from robocache_ros.errors import printable
from robocache_ros.remote.any_path import is_url
from robocache_ros.remote.cache_limit import VARIABLE


def place(text: str) -> Path:
    """Return a folder or, as it is, a URL: `Path` would change its slashes. The commands check it."""
    if found := re.match(r"(s3a?|gs|gcs|az|abfss?|https?):/?(?!/)", text):
        raise typer.BadParameter(f"{printable(text)} is not a URL; write {found[1]}://{printable(text[found.end() :])}")
    return cast(Path, text) if is_url(text) else Path(text)


class Visibility(str, Enum):
    """Which samples a tick uses."""

    ideal = "ideal"
    deployed = "deployed"


class Media(str, Enum):
    """How camera images are stored in a dataset."""

    video = "video"
    image = "image"
    none = "none"


class Depth(str, Enum):
    """How depth images are stored in a dataset."""

    arrays = "arrays"
    video = "video"


class Jpeg(str, Enum):
    """The decoder of jpeg images."""

    cpu = "cpu"
    gpu = "gpu"


class Voxels(str, Enum):
    """How voxel grids are stored in a dataset."""

    dense = "dense"
    sparse = "sparse"


class Codec(str, Enum):
    """The codec of videos."""

    auto = "auto"
    av1 = "av1"
    h264 = "h264"
    copy = "copy"


class OnInvalid(str, Enum):
    """How an export handles ticks at which a stream has no value."""

    spec = "spec"
    split = "split"  # type: ignore[assignment]  # also the name of a method of str
    hold = "hold"
    mask = "mask"
    drop = "drop"
    fail = "fail"


class Action(str, Enum):
    """What an export stores as actions."""

    absolute = "absolute"
    delta = "delta"
    next_observation = "next-observation"
    next_delta = "next-delta"


class On(str, Enum):
    """What runs the conversions of an export."""

    here = "here"
    ray = "ray"


class OnError(str, Enum):
    """How an export handles the other recordings if one cannot be converted."""

    fail = "fail"
    skip = "skip"


SpecFile = Annotated[
    Path, typer.Option("--spec", "-s", parser=place, metavar="PATH", help="The fusion spec (YAML), or its URL.")
]
Recording = Annotated[
    Path,
    typer.Argument(
        parser=place, metavar="BAG", help="A rosbag2 folder, or a .mcap, .db3 or ROS 1 .bag file, or its URL."
    ),
]
Recordings = Annotated[
    Optional[list[Path]],  # noqa: UP045 - typer reads it at run time
    typer.Argument(
        parser=place,
        metavar="BAG",
        help="Recordings (rosbag2 folders; .mcap, .db3 and ROS 1 .bag files), folders to search, and globs in quotes; "
        "also as URLs such as s3://raw/**.",
        show_default=False,
    ),
]
ManifestFile = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads it at run time
    typer.Option(
        "--manifest",
        parser=place,
        metavar="PATH",
        help="A YAML or CSV file that lists the recordings: recording, task, from, to, success.",
    ),
]
LogJson = Annotated[
    bool, typer.Option("--log-json", help="Write progress and errors to stderr as one JSON object per line.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout, also for errors.")]
MSG_PATH = typer.Option(
    metavar="DIR",
    help="Folder with ROS packages, <package>/msg/<Type>.msg, for types that a recording does not define; may be "
    "repeated.",
)
MsgPath = Annotated[Optional[list[str]], MSG_PATH]  # noqa: UP045 - typer reads it at run time
Sees = Annotated[
    Visibility,
    typer.Option(
        help="ideal: use every sample; deployed: leave out samples that the robot would have received too late."
    ),
]
Compares = Annotated[
    bool,
    typer.Option(
        "--compare-visibility", help="Show ideal and deployed side by side in the report: fuses each recording twice."
    ),
]
AtInvalid = Annotated[
    OnInvalid,
    typer.Option(help="Ticks without a value: leave them out and split, hold the last value, store zeros, or fail."),
]
Jobs = Annotated[
    Optional[int],  # noqa: UP045 - typer reads it at run time
    typer.Option("--jobs", "-j", help="Processes that convert recordings; the number of cores by default."),
]
RunsOn = Annotated[
    On,
    typer.Option(
        "--on", help="Convert on this machine, or with Ray: a task per recording, as many as its machines run."
    ),
]
RayAddress = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time
    typer.Option(
        "--address",
        help="With --on ray: the cluster, as HOST:PORT; else RAY_ADDRESS, or a Ray started on this machine.",
    ),
]
PerTask = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time
    typer.Option(
        "--per-task",
        metavar="NEEDS",
        help="With --on ray: what a recording needs, as cpus=2,gpus=0.25,memory=4GB; memory is estimated by default.",
    ),
]
Device = Annotated[
    str,
    typer.Option("--device", help="Convert images and clouds on the CPU, or on a GPU: auto, cpu, cuda or cuda:1."),
]
Target = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        parser=place,
        metavar="DIR",
        help="The folder of the dataset, new or empty, or a URL such as s3://datasets/lift.",
    ),
]
Pieces = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads it at run time
    typer.Option(
        "--pieces",
        parser=place,
        metavar="DIR",
        help="Keep the converted recordings in this folder or URL, for other exports with the same options.",
    ),
]
CacheBytes = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time
    typer.Option(
        "--cache-bytes",
        envvar=VARIABLE,
        metavar="SIZE",
        help="Of downloaded recordings to keep for later exports, such as 16GB; 64 GiB by default.",
    ),
]
ShardOf = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time
    typer.Option(
        "--shard",
        metavar="INDEX/COUNT",
        help="Convert a part of the recordings into --pieces, 0/32 to 31/32; the last shard writes the dataset.",
    ),
]
AtError = Annotated[
    OnError,
    typer.Option(
        help="A recording that fails: convert the others and fail, or make the dataset of the others (exit code 1).",
    ),
]
