"""`python -m benchmarks …`: the suite, its parts, the comparison of results, and synthetic datasets.

Run in a checkout of the repository.
"""

# No `from __future__ import annotations`: typer 0.9 does not evaluate annotations that are text.

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from benchmarks.suite import PARTS
from robocache_ros.errors import RoboCacheError
from robocache_ros.programs import run as run_program

app = typer.Typer(
    name="benchmarks",
    help="Measure performance on this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("all")
def all_parts(
    out: Annotated[Path, typer.Option(help="New folder of the results.")] = Path("bench-results"),
    part: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help=f"Run this part only; may be repeated. Parts: {', '.join(PARTS)}."),
    ] = None,
    budget_s: Annotated[
        float, typer.Option(help="Seconds for all parts: what has not begun by then is not run.")
    ] = 1200.0,
) -> None:
    """Run every part that this machine can run, and write JSON, Markdown and plots; at most 20 minutes."""
    from benchmarks.processes import end_on_sigterm
    from benchmarks.suite import run_suite

    if not 0 < budget_s <= 86_400:
        raise RoboCacheError(f"budget-s: {budget_s:g} is not in 0..86400; give a duration in s")
    end_on_sigterm()
    failed = run_suite(list(dict.fromkeys(part or PARTS)), out, typer.echo, budget_s)
    typer.echo(f"results: {out / 'suite.md'}")
    if failed:
        raise typer.Exit(1)


@app.command()
def compare(
    old: Annotated[Path, typer.Argument(help="Results file, or folder of results.")],
    new: Annotated[Path, typer.Argument(help="The same of the other run.")],
    noise: Annotated[float, typer.Option(help="Relative difference that means nothing.")] = 0.05,
) -> None:
    """Compare two results; exit with 1 if a figure is worse by more than the noise, with 2 if they cannot be read."""
    from benchmarks import compare as compare_results

    found = compare_results.compare(old, new, noise)
    typer.echo(compare_results.as_text(found, noise))
    if found.worse:
        raise typer.Exit(1)


@app.command("make-data")
def make_data(
    out: Annotated[Path, typer.Argument(help="New folder of the datasets.")],
    file_format: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--format", help="This format; may be repeated. Default: hdf5, rlds, calvin, robomimic, lerobot."),
    ] = None,
    episodes: Annotated[int, typer.Option(help="Number of episodes, of 5.5 to 9 s.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the lengths and the values.")] = 0,
    bridge: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Also convert so many episodes of this TFDS dataset, such as Bridge, to HDF5."),
    ] = None,
    bridge_split: Annotated[str, typer.Option(help="The split of it, such as val.")] = "train",
) -> None:
    """Write one synthetic dataset of streams from 30 to 333 Hz in several formats."""
    from benchmarks.make_data import DEFAULT, make_sets

    for name, path in make_sets(out, file_format or DEFAULT, episodes, seed, bridge, bridge_split).items():
        typer.echo(f"{name}: {path}")


def _register_part(name: str) -> None:
    """Add a part as a command that hands its arguments to the part's module."""
    part = PARTS[name]

    def run(context: typer.Context) -> None:
        if "--help" not in context.args and (missing := part.missing(quick="--quick" in context.args)) is not None:
            raise RoboCacheError(f"{name}: needs {missing}")
        program = (sys.executable, "-m", "benchmarks.run_part", name)
        raise typer.Exit(subprocess.run([*program, *part.command, *context.args]).returncode)

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    words = f"{part.measures[0].upper()}{part.measures[1:]} (--help lists the options)."
    app.command(name, help=words, add_help_option=False, context_settings=settings)(run)


for _name in PARTS:
    _register_part(_name)


def main(arguments: Optional[list[str]] = None) -> int:  # noqa: UP045
    """Run the command line; a mistake is a line on stderr and exit code 2."""
    return run_program("benchmarks", lambda: app(args=sys.argv[1:] if arguments is None else arguments))


if __name__ == "__main__":
    sys.exit(main())
