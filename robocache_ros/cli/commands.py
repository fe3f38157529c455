"""The commands of `robocache`: inspect recordings, export datasets and reports, check specs."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

import importlib
import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from robocache_ros.bench.command import register as register_bench
from robocache_ros.cli import option_types as given
from robocache_ros.cli.validate_command import register as register_validate
from robocache_ros.errors import RoboCacheError, SeveralErrors, printable
from robocache_ros.extras import install_hint

LINE_CHARACTERS = 188  # with the prefix `robocache: `, a line has fewer than 200 characters

app = typer.Typer(
    name="robocache",
    help="Fuse a robot's multi-rate topics into one stream of tensors, and export recordings as datasets.",
    epilog="Exit codes: 0 success; 1 a check failed; 2 a mistake in arguments, a spec or a recording; 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from robocache_ros import __version__

        typer.echo(f"robocache_ros {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


@app.command()
def info(
    bag: given.Recording,
    write_spec: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it at run time
        typer.Option("--write-spec", help="Write a first spec for the recording to this file."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing spec.")] = False,
) -> None:
    """Show the topics, types, rates and delays of a recording, or write a first spec for it."""
    from robocache_ros.bags.describe import describe
    from robocache_ros.cli import tables

    if write_spec and write_spec.exists() and not overwrite:
        raise RoboCacheError(f"{printable(write_spec)}: already exists; choose another file, or give --overwrite")
    described = describe(bag)
    tables.show(tables.bag_table(described))
    if described.frames:
        tables.show(tables.frame_table(described.frames))
    tables.show_notes(described.notes)
    tables.say(f"integrity: {described.integrity}")
    if write_spec:
        from robocache_ros.bags.suggest.first_spec import suggest_spec

        _write(write_spec, suggest_spec(described))
        tables.say(f"wrote {write_spec}; next: robocache export {bag} --spec {write_spec} --out DIR")


# More than 50 lines, because of the options with their help texts.
@app.command()
def export(
    bags: Annotated[list[Path], typer.Argument(help="Recordings; each one becomes one or more episodes.")],
    spec: given.SpecFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the dataset, new or empty.")],
    formats: given.Formats = None,
    visibility: given.Sees = given.Visibility.ideal,
    media: Annotated[
        given.Media, typer.Option(help="Store camera images as video (lossy), as PNG (lossless), or not at all.")
    ] = given.Media.video,
    task: Annotated[str, typer.Option(help="The task that the robot performs, in words.")] = "robot task",
    robot_type: Annotated[str, typer.Option(help="The robot's name in the dataset.")] = "unknown",
    on_invalid: given.AtInvalid = given.OnInvalid.spec,
    min_frames: Annotated[int, typer.Option(help="Leave out episodes that are shorter.")] = 2,
    min_valid: Annotated[
        float, typer.Option(help="Refuse a recording that keeps a smaller share of its ticks.")
    ] = 0.25,
    trim: Annotated[
        bool, typer.Option(help="With --on-invalid mask, leave out the invalid ticks at both ends.")
    ] = True,
    report: Annotated[bool, typer.Option(help="Write report.html into the dataset.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the dataset in the folder.")] = False,
    jobs: given.Jobs = None,
    on_error: given.AtError = given.OnError.fail,
) -> None:
    """Export recordings as a dataset with a quality report. Run the same command again to continue a stopped one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # SystemExit: files are removed
    from robocache_ros.cli import export_outcome, tables
    from robocache_ros.export.export_options import ExportOptions
    from robocache_ros.export.freed_memory import return_freed_memory
    from robocache_ros.export.job import export as run
    from robocache_ros.spec import load_spec

    options = ExportOptions(
        formats=tuple(formats or ["lerobot"]),
        visibility=visibility.value,
        media=media.value,
        task=task,
        robot_type=robot_type,
        on_invalid=on_invalid.value,
        min_frames=min_frames,
        min_valid=min_valid,
        trim=trim,
    )
    return_freed_memory()
    with export_outcome.continued(out), tables.progress_bar(len(set(bags))) as progress:
        result = run(
            bags,
            load_spec(spec),
            out,
            options,
            overwrite=overwrite,
            report=report,
            jobs=jobs,
            on_error=on_error.value,
            progress=progress,
        )
    export_outcome.show(result, report=report)
    if any(not loss.dropped for loss in result.failed):
        raise typer.Exit(1)


@app.command()
def report(
    bag: given.Recording,
    spec: given.SpecFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("report.html"),
    visibility: given.Sees = given.Visibility.ideal,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Write the quality report of a recording, without a dataset."""
    from robocache_ros.cli import tables
    from robocache_ros.export.job import summarize
    from robocache_ros.export.report.page import write_report
    from robocache_ros.spec import load_spec

    if out.exists() and not overwrite:
        raise RoboCacheError(f"{printable(out)}: already exists; choose another file, or give --overwrite")
    with tables.progress_bar(1) as progress:
        episode = summarize(bag, load_spec(spec), visibility=visibility.value, progress=progress)
    write_report([episode], out, overwrite=overwrite)
    tables.say(f"wrote {out}")


@app.command()
def check(spec: Annotated[Path, typer.Argument(help="The fusion spec (YAML).")]) -> None:
    """Check a spec; print every error in it, or each stream with its defaults and its columns in the fused tensor."""
    from robocache_ros.cli import tables
    from robocache_ros.spec import load_spec

    tables.show(tables.spec_table(load_spec(spec)))


@app.command()
def schema() -> None:
    """Print the JSON schema of a spec, for editors."""
    from robocache_ros.spec import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@app.command()
def env() -> None:
    """Print the installed versions and the device in use."""
    from robocache_ros import print_installation_info

    print_installation_info()


@app.command("self-test")
def self_test() -> None:
    """Check that every backend gives correct results on this machine."""
    from robocache_ros import self_test as run

    if not run():
        raise typer.Exit(1)


def _forward(name: str, target: str, words: str) -> None:
    """Add a command that forwards its arguments. Its module is imported when the command is called."""

    def run(context: typer.Context) -> None:
        module, _, function = target.partition(":")
        try:
            entry = getattr(importlib.import_module(module), function)
        except ImportError as error:
            if (hint := install_hint(error)) is None:
                raise
            raise RoboCacheError(hint) from None
        code = entry(context.args)
        raise typer.Exit(int(code or 0))

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=words, add_help_option=False, context_settings=settings)(run)


_forward(
    "play", "robocache_ros.nodes.bag_player:main", "Replay a recording as ROS 2 topics (--help lists the options)."
)
_forward(
    "demo",
    "robocache_ros.demo.show:main",
    "Replay a recording through a ROS 2 node, compare with offline ticks, export it (--help lists the options).",
)


_bench = typer.Typer(help="Measure performance on this machine.", no_args_is_help=True)
_bench.callback()(lambda: None)  # makes it a group even with a single command
register_bench(_bench)
app.add_typer(_bench, name="bench")
register_validate(app)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RoboCacheError(f"{printable(path)}: cannot be written ({reason}); choose another file") from None


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A user error prints one line per error to stderr and exits with code 2."""
    try:
        app(args=arguments, standalone_mode=True)
    except RoboCacheError as error:
        lines = str(error).splitlines() if isinstance(error, SeveralErrors) else [str(error)]
        for line in lines:
            typer.echo(f"robocache: {printable(line, LINE_CHARACTERS)}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
