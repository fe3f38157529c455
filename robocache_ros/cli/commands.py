"""The commands of `robocache`: inspect recordings, export datasets and reports, check specs."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

import importlib
import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from robocache_ros.bench.command import live
from robocache_ros.cli.calibrate import calibrate
from robocache_ros.cli.check import check, report, validate
from robocache_ros.cli.doctor import doctor
from robocache_ros.cli.export import export
from robocache_ros.cli.fleet import fleet
from robocache_ros.cli.info import info
from robocache_ros.cli.program import run as run_program
from robocache_ros.cli.run import replay, run
from robocache_ros.cli.view import view

app = typer.Typer(
    name="robocache",
    help="Fuse a robot's multi-rate topics into one stream of tensors, and export recordings as datasets.",
    epilog="Exit codes: 0 success; 1 a check failed; 2 a mistake in arguments, a spec or a recording; 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (info, check, export, report, doctor, run):
    app.command()(command)


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


def _forward(name: str, target: str, words: str, parser: str) -> None:
    """Add a command that forwards its arguments to `target`. Help comes from `parser`, whose module needs no ROS."""

    def run(context: typer.Context) -> None:
        if {"-h", "--help"} & set(context.args):
            module, _, function = parser.partition(":")
            getattr(importlib.import_module(module), function)().print_help()
            return
        module, _, function = target.partition(":")
        code = getattr(importlib.import_module(module), function)(context.args)
        raise typer.Exit(int(code or 0))

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=words, add_help_option=False, context_settings=settings)(run)


_forward(
    "play",
    "robocache_ros.nodes.bag_player:main",
    "Replay a recording as ROS 2 topics (--help lists the options).",
    parser="robocache_ros.bags.player:parser",
)
_forward(
    "record",
    "robocache_ros.cli.record:main",
    "Record episodes of a robot's topics, by the keys of the terminal (--help lists the options).",
    parser="robocache_ros.cli.record:parser",
)
_forward(
    "demo",
    "robocache_ros.cli.demo:main",
    "Replay a recording through a ROS 2 node, compare with offline ticks, export it (--help lists the options).",
    parser="robocache_ros.cli.demo:parser",
)


def _sim(arguments: Sequence[str]) -> int:
    """The simulated robot as a node, or its demonstrations without ROS."""
    from robocache_ros.sim.command import parse, write_demonstrations

    given = parse(arguments)
    if given.out is None:
        return int(importlib.import_module("robocache_ros.nodes.simulator").main(arguments))
    write_demonstrations(given.out, given, print)
    return 0


_forward(
    "sim",
    "robocache_ros.cli.commands:_sim",
    "Simulate an SO-101 arm as a ROS 2 node, or write its demonstrations (--help lists the options).",
    parser="robocache_ros.sim.command:parser",
)


_bench = typer.Typer(help="Measure performance on this machine.", no_args_is_help=True)
_bench.callback()(lambda: None)  # makes it a group even with a single command
_bench.command()(live)
app.add_typer(_bench, name="bench")
app.add_typer(fleet, name="fleet")
app.command()(validate)
app.command()(replay)
app.command()(calibrate)
app.command()(view)


def main(arguments: list[str] | None = None, program: str = "robocache") -> None:
    """Run the command line. A user error prints one line per error to stderr and exits with code 2."""
    run_program(app, sys.argv[1:] if arguments is None else arguments, program)


if __name__ == "__main__":
    main()
