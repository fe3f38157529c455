"""The arguments and options of the commands: those that several share, and those that a dataclass declares."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

import typer

from robocache_ros.spec import keys
from robocache_ros.spec.dataset import ACTIONS, EPISODES, IMAGES, INPUT, MACHINES, OUTPUT, DatasetOptions
from robocache_ros.spec.run import PLAN, STOPPING

if TYPE_CHECKING:
    from robocache_ros.spec import FusionSpec


# The types of what need not be given: typer reads them at run time, and its oldest version does not know `str | None`.
OptionalText = Optional[str]  # noqa: UP045
OptionalTexts = Optional[list[str]]  # noqa: UP045
OptionalPath = Optional[Path]  # noqa: UP045
OptionalInt = Optional[int]  # noqa: UP045
OptionalFloat = Optional[float]  # noqa: UP045


def place(text: str) -> str:
    """Return a path or URL if it can be one. It stays text, since a `Path` would change the slashes of a URL."""
    try:
        keys.place.read(text)
    except keys.SpecError as error:
        raise typer.BadParameter(str(error)) from None
    return text


SpecFile = Annotated[
    str, typer.Option("--spec", "-s", parser=place, metavar="PATH", help="The fusion spec (YAML), or its URL.")
]
SpecOfRecording = Annotated[
    OptionalText,
    typer.Option(
        "--spec",
        "-s",
        parser=place,
        metavar="PATH",
        help="The fusion spec; else that of a run log, or the one that `info --write-spec` suggests.",
    ),
]
Recording = Annotated[
    str,
    typer.Argument(
        parser=place, metavar="BAG", help="A rosbag2 folder, or a .mcap, .db3 or ROS 1 .bag file, or its URL."
    ),
]
Recordings = Annotated[
    OptionalTexts,
    typer.Argument(
        parser=place,
        metavar="BAG",
        help="Recordings (rosbag2 folders; .mcap, .db3, .bag files), folders to search, globs in quotes, or URLs.",
        show_default=False,
    ),
]
ManifestFile = Annotated[
    OptionalText,
    typer.Option(
        "--manifest",
        parser=place,
        metavar="PATH",
        help="YAML or CSV file that lists the recordings, in place of BAG.",
        rich_help_panel=INPUT,
    ),
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log progress and errors to stderr, a JSON object per line.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout, also for errors.")]
Target = Annotated[
    str,
    typer.Option(
        "--out",
        "-o",
        parser=place,
        metavar="DIR",
        help="Folder of the dataset, new or empty, or a URL.",
        rich_help_panel=OUTPUT,
    ),
]

# Options that a dataclass declares with `key(..., flag=Flag(...))`.
#
# Typer sees text, lists of text and booleans, whose default is None: not given. The types of the keys read them.

Command = TypeVar("Command", bound=Callable[..., Any])
PANELS = (INPUT, OUTPUT, EPISODES, ACTIONS, IMAGES, MACHINES, PLAN, STOPPING)  # in the order of --help


def flags(cls: type) -> dict[str, Field[Any]]:
    """Return the keys of a dataclass that are options of a command line, by name, in the order of --help."""
    declared = {name: field for name, field in keys.keys_of(cls).items() if field.metadata["flag"]}
    return dict(sorted(declared.items(), key=lambda item: PANELS.index(item[1].metadata["flag"].panel)))


def with_options(cls: type, *only: str) -> Callable[[Command], Command]:
    """Give a command the options of a dataclass; it receives those that were given as `given: dict[str, Any]`.

    Args:
        cls: a dataclass of declared keys.
        only: names of some of its keys, with one heading in --help.
    """
    chosen = {name: field for name, field in flags(cls).items() if not only or name in only}
    options = {
        name: inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(field, panel=not only)
        )
        for name, field in chosen.items()
    }

    def decorate(command: Command) -> Command:
        own = [p for name, p in inspect.signature(command).parameters.items() if name != "given"]

        @wraps(command)
        def run(**values: Any) -> Any:
            found = {name: values.pop(name) for name in options}
            given = {name: value for name, value in found.items() if value not in (None, [], ())}
            return command(**values, given=keys.read_values(cls, given, flags=True))

        parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *options.values()]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run  # type: ignore[return-value]

    return decorate


def help_line(field: Field[Any]) -> str:
    """Return the line of --help of a key, with its default."""
    flag, doc = field.metadata["flag"], field.metadata["doc"]
    text = flag.help or f"{doc[0].upper()}{doc[1:]}."
    default = field.default
    shown = flag.shown
    if not shown and default not in (MISSING, None, "", ()) and not isinstance(default, bool):
        shown = ", ".join(default) if isinstance(default, tuple) else str(default).removesuffix(".0")
    return f"{text} ({shown})" if shown else text


def _option(field: Field[Any], *, panel: bool) -> Any:
    flag, schema = field.metadata["flag"], field.metadata["type"].schema
    names = list(keys.flags_of(field))
    choices = [str(each) for each in schema.get("enum", ())]
    kind: Any = str
    if schema.get("type") == "boolean":
        kind = bool
        if field.default:
            names = [f"{names[0]}/--no-{names[0][2:]}"]
    elif schema.get("type") == "array":
        kind = list[str]

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return Annotated[
        Optional[kind],  # noqa: UP045 - typer reads it at run time
        typer.Option(
            *names,
            help=help_line(field),
            metavar=flag.metavar or "|".join(choices) or None,
            rich_help_panel=flag.panel if panel else None,
            show_default=False,
            autocompletion=complete if choices else None,
        ),
    ]


with_msg_path = with_options(DatasetOptions, "msg_path")


def spec_of_recording(recording: str, spec: str | None, msg_path: Sequence[str]) -> "FusionSpec":
    """Return the spec that `SpecOfRecording` gives, else that of a run log, else a first one for the recording."""
    import yaml

    from robocache_ros.bags.describe import describe
    from robocache_ros.bags.suggest.first_spec import first_spec
    from robocache_ros.recorder.run_log import spec_of_run
    from robocache_ros.spec import load_spec
    from robocache_ros.storage.paths import any_path

    if spec is not None:
        return load_spec(spec)
    path = any_path(recording, "recordings")
    if isinstance(path, Path) and path.is_file() and (own := spec_of_run(path)):
        return own
    return load_spec(yaml.safe_load(first_spec(describe(path, msg_path)).text))
