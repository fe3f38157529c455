"""The options of an exported dataset: an option of the command line for each field of `ExportOptions`.

The rate is not one of them, because an export may make datasets of several.
To add an option, add the field with its default to `ExportOptions` and its option to `OPTIONS`.
"""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

import inspect
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from functools import wraps
from typing import Annotated, Any, Optional, TypeVar

import typer

from robocache_ros.cli import option_types as given
from robocache_ros.export.export_options import ExportOptions

Command = TypeVar("Command", bound=Callable[..., Any])

# Field of ExportOptions -> its type and option; the default is that of the field.
OPTIONS: dict[str, Any] = {
    "formats": Annotated[
        list[str],
        typer.Option("--format", "-f", help="Dataset format, see docs/reference/formats.md; may be repeated."),
    ],
    "visibility": given.Sees,
    "compare_visibility": given.Compares,
    "media": Annotated[
        given.Media, typer.Option(help="Store camera images as video (lossy), as PNG (lossless), or not at all.")
    ],
    "codec": Annotated[
        given.Codec,
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
        given.Jpeg, typer.Option(help="With a GPU, decode jpeg with nvJPEG (gpu), whose pixels differ a little.")
    ],
    "depth": Annotated[
        given.Depth, typer.Option(help="Store depth images as arrays, or in the format lerobot as 12-bit video.")
    ],
    "voxels": Annotated[
        given.Voxels, typer.Option(help="In the format lerobot, store whole voxel grids, or voxels that are not empty.")
    ],
    "points": Annotated[
        int, typer.Option(help="Store voxels with the features x, y, z as clouds of this number of points.", min=0)
    ],
    "task": Annotated[str, typer.Option(help="The task that the robot performs, in words.")],
    "robot_type": Annotated[str, typer.Option(help="The robot's name in the dataset.")],
    "on_invalid": given.AtInvalid,
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
        given.Action,
        typer.Option(help="Commands, their changes, or for recordings without commands later observations."),
    ],
    "action_from": Annotated[
        list[str],
        typer.Option(help="Observation that a delta begins at, or that becomes the action; may be repeated."),
    ],
    "action_offset": Annotated[
        str, typer.Option(help="How much later than its row an action is: ticks, or a time such as 40ms.")
    ],
    "msg_path": Annotated[list[str], given.MSG_PATH],
    "trim": Annotated[bool, typer.Option(help="With --on-invalid mask, leave out the invalid ticks at both ends.")],
}
_KINDS: dict[str, type[Enum]] = {
    "visibility": given.Visibility,
    "media": given.Media,
    "codec": given.Codec,
    "jpeg": given.Jpeg,
    "depth": given.Depth,
    "voxels": given.Voxels,
    "on_invalid": given.OnInvalid,
    "action": given.Action,
}


def with_export_options(command: Command) -> Command:
    """Give a command the options of a dataset; it receives them as its parameter `options: ExportOptions`."""
    own = {name: p for name, p in inspect.signature(command).parameters.items() if name != "options"}
    defaults = {field.name: field.default for field in fields(ExportOptions)}
    added = {
        name: inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_shown(name, defaults[name]), annotation=kind
        )
        for name, kind in OPTIONS.items()
    }

    @wraps(command)
    def run(**values: Any) -> Any:
        chosen = {name: values.pop(name) for name in OPTIONS}
        options = ExportOptions(**{name: _plain(value) for name, value in chosen.items()})
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
