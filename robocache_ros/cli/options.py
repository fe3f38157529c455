"""The arguments and options of the commands, and those of a dataset: an option for each field of `DatasetOptions`.

The rate is not one of them, because an export may make datasets of several.
To add an option, add the field with its default to `DatasetOptions` and its option to `OPTIONS`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar, cast

import typer

from robocache_ros.errors import printable
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.cache import VARIABLE
from robocache_ros.storage.paths import is_url

# Arguments and options shared by several commands.


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


# The options of an exported dataset: an option of the command line for each field of `DatasetOptions`.
#
# The rate is not one of them, because an export may make datasets of several.
# To add an option, add the field with its default to `DatasetOptions` and its option to `OPTIONS`.


# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.


Command = TypeVar("Command", bound=Callable[..., Any])

# Field of DatasetOptions -> its type and option; the default is that of the field.
OPTIONS: dict[str, Any] = {
    "formats": Annotated[
        list[str],
        typer.Option("--format", "-f", help="Dataset format, see docs/reference/formats.md; may be repeated."),
    ],
    "visibility": Sees,
    "compare_visibility": Compares,
    "media": Annotated[
        Media, typer.Option(help="Store camera images as video (lossy), as PNG (lossless), or not at all.")
    ],
    "codec": Annotated[
        Codec,
        typer.Option(
            help="Codec of videos. auto: what readers of a format expect. copy: video topics are not encoded again."
        ),
    ],
    "crf": Annotated[
        Optional[int],  # noqa: UP045 - typer reads it at run time
        typer.Option(help="Quality of videos; lower is better and larger.", show_default="av1: 30, h264: 23"),
    ],
    "preset": Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Speed of the encoder; slower ones write less.", show_default="av1: 12, h264: veryfast"),
    ],
    "gop": Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="Frames from one key frame to the next: as many are decoded to read one.", show_default="2"),
    ],
    "jpeg": Annotated[
        Jpeg, typer.Option(help="With a GPU, decode jpeg with nvJPEG (gpu), whose pixels differ a little.")
    ],
    "depth": Annotated[
        Depth, typer.Option(help="Store depth images as arrays, or in the format lerobot as 12-bit video.")
    ],
    "voxels": Annotated[
        Voxels, typer.Option(help="In the format lerobot, store whole voxel grids, or voxels that are not empty.")
    ],
    "points": Annotated[
        int, typer.Option(help="Store voxels with the features x, y, z as clouds of this number of points.", min=0)
    ],
    "task": Annotated[str, typer.Option(help="The task that the robot performs, in words.")],
    "robot_type": Annotated[str, typer.Option(help="The robot's name in the dataset.")],
    "on_invalid": AtInvalid,
    "min_frames": Annotated[int, typer.Option(help="Leave out episodes that are shorter.")],
    "min_valid": Annotated[float, typer.Option(help="Refuse a recording that keeps a smaller share of its ticks.")],
    "episode_topic": Annotated[
        str,
        typer.Option(
            help="Topic that divides recordings: a bool is true inside of an episode, a new integer or text begins "
            "one, another message ends one and begins the next."
        ),
    ],
    "episode_file": Annotated[
        bool, typer.Option(help="Use the episodes.yaml or episodes.csv of a recording, if there is one.")
    ],
    "split_s": Annotated[float, typer.Option("--split", help="Divide episodes into parts of this many seconds.")],
    "trim_idle_s": Annotated[
        float, typer.Option("--trim-idle", help="Leave out ticks at which nothing moves for this many seconds.")
    ],
    "task_topic": Annotated[str, typer.Option(help="Topic of std_msgs/String with the task of each episode.")],
    "action": Annotated[
        Action,
        typer.Option(help="Commands, their changes, or for recordings without commands later observations."),
    ],
    "action_from": Annotated[
        list[str],
        typer.Option(help="Observation that a delta begins at, or that becomes the action; may be repeated."),
    ],
    "action_offset": Annotated[
        str, typer.Option(help="How much later than its row an action is: ticks, or a time such as 40ms.")
    ],
    "msg_path": Annotated[list[str], MSG_PATH],
    "trim": Annotated[bool, typer.Option(help="With --on-invalid mask, leave out the invalid ticks at both ends.")],
}
_KINDS: dict[str, type[Enum]] = {
    "visibility": Visibility,
    "media": Media,
    "codec": Codec,
    "jpeg": Jpeg,
    "depth": Depth,
    "voxels": Voxels,
    "on_invalid": OnInvalid,
    "action": Action,
}


def with_export_options(command: Command) -> Command:
    """Give a command the options of a dataset; it receives them as its parameter `options: DatasetOptions`."""
    own = {name: p for name, p in inspect.signature(command).parameters.items() if name != "options"}
    defaults = {field.name: field.default for field in fields(DatasetOptions)}
    added = {
        name: inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_shown(name, defaults[name]), annotation=kind
        )
        for name, kind in OPTIONS.items()
    }

    @wraps(command)
    def run(**values: Any) -> Any:
        chosen = {name: values.pop(name) for name in OPTIONS}
        options = DatasetOptions(**{name: _plain(value) for name, value in chosen.items()})
        return command(**values, options=options)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own.values()]
    run.__signature__ = inspect.Signature([*parameters, *added.values()])  # type: ignore[attr-defined]  # read by typer
    run.__annotations__ = {name: p.annotation for name, p in (own | added).items()}
    return run  # type: ignore[return-value]


def _shown(name: str, default: Any) -> Any:
    """Return the default of a field as typer shows and parses it."""
    if name in _KINDS:
        return _KINDS[name](default)
    return list(default) if isinstance(default, tuple) else default


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else tuple(value) if isinstance(value, list) else value
