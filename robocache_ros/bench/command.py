"""`robocache bench ...` as commands of a typer application: the suite, its parts, and the comparison of results."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate annotations that are text.

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from robocache_ros.bench.live.load import Load
from robocache_ros.bench.suite.benchmark_parts import PARTS
from robocache_ros.errors import RoboCacheError

_SIZE = Load()
VIAS = ("auto", "message", "ring")


def live(
    seconds: Annotated[float, typer.Option(help="Seconds to measure, after a warm-up.")] = 60.0,
    device: Annotated[str, typer.Option(help="Device of the node: auto, cpu, cuda, cuda:<index>.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for live.json and live.png.")] = Path("bench-live"),
    naive: Annotated[bool, typer.Option("--naive", help="Measure the naive node first.")] = False,
    via: Annotated[str, typer.Option(help="Transport of frames to the consumer: auto, message, ring.")] = "auto",
    delay_ms: Annotated[float, typer.Option(help="Publish a tick this many ms after its time.")] = 3.0,
    lead_ms: Annotated[float, typer.Option(help="Compute a tick this many ms before it is published.")] = 1.5,
    reliability: Annotated[str, typer.Option(help="Reliability: best_effort or reliable.")] = "best_effort",
    separate_publishers: Annotated[
        bool,
        typer.Option("--separate-publishers", help="Publish from a process for each camera, for clouds, for the rest."),
    ] = False,
    cameras: Annotated[int, typer.Option(help="Number of cameras.")] = _SIZE.cameras,
    width: Annotated[int, typer.Option(help="Width of an image.")] = _SIZE.width,
    height: Annotated[int, typer.Option(help="Height of an image.")] = _SIZE.height,
    camera_hz: Annotated[float, typer.Option(help="Images per second of each camera.")] = _SIZE.camera_hz,
    points: Annotated[int, typer.Option(help="Points per cloud, 16 bytes each.")] = _SIZE.points,
    cloud_hz: Annotated[float, typer.Option(help="Clouds per second; 0: none.")] = _SIZE.cloud_hz,
    joints_hz: Annotated[float, typer.Option(help="Joint states per second; 0: none.")] = _SIZE.joints_hz,
    imu_hz: Annotated[float, typer.Option(help="IMU messages per second; 0: none.")] = _SIZE.imu_hz,
    pose_hz: Annotated[float, typer.Option(help="Poses per second; 0: none.")] = _SIZE.pose_hz,
) -> None:
    """Measure losses, latency and cost of the node under the load of a robot, up to a consumer."""
    from robocache_ros.bench.live.options import Options
    from robocache_ros.bench.live.run import main

    load = Load(cameras, width, height, camera_hz, points, cloud_hz, joints_hz, imu_hz, pose_hz)
    if not load.sensors:
        raise RoboCacheError("rates: all are 0, so nothing is published; give at least one above 0")
    if not 0 < seconds <= 3600:
        raise RoboCacheError(f"seconds: {seconds:g} is not in 0..3600; give a duration in s")
    if via not in VIAS:
        raise RoboCacheError(f"via: {via!r} is not one of {', '.join(VIAS)}")
    main(Options(load, seconds, device, delay_ms, lead_ms, via, reliability, separate_publishers), naive=naive, out=out)


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
    from robocache_ros.bench.suite.run_parts import run_suite
    from robocache_ros.bench.training.row_process import end_on_sigterm

    if not 0 < budget_s <= 86_400:
        raise RoboCacheError(f"budget-s: {budget_s:g} is not in 0..86400; give a duration in s")
    end_on_sigterm()
    failed = run_suite(list(dict.fromkeys(part or PARTS)), out, typer.echo, budget_s)
    typer.echo(f"results: {out / 'suite.md'}")
    if failed:
        raise typer.Exit(1)


def compare(
    old: Annotated[Path, typer.Argument(help="Results file, or folder of results.")],
    new: Annotated[Path, typer.Argument(help="The same of the other run.")],
    noise: Annotated[float, typer.Option(help="Relative difference that means nothing.")] = 0.05,
) -> None:
    """Compare two results; exit with 1 if a figure is worse by more than the noise, with 2 if they cannot be read."""
    from robocache_ros.bench.suite import compare_results

    found = compare_results.compare(old, new, noise)
    typer.echo(compare_results.as_text(found, noise))
    if found.worse:
        raise typer.Exit(1)


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
    from robocache_ros.bench.formats.make_sets import DEFAULT, make_sets

    for name, path in make_sets(out, file_format or DEFAULT, episodes, seed, bridge, bridge_split).items():
        typer.echo(f"{name}: {path}")


def register(app: Any) -> None:
    """Add the commands to a typer application."""
    app.command("all")(all_parts)
    app.command("compare")(compare)
    app.command("live")(live)
    app.command("make-data")(make_data)
    for name in PARTS:
        if name != "live":
            _register_part(app, name)


def _register_part(app: Any, name: str) -> None:
    """Add a part as a command that hands its arguments to the part's module."""
    part = PARTS[name]

    def run(context: typer.Context) -> None:
        if "--help" not in context.args and (missing := part.missing(quick="--quick" in context.args)) is not None:
            raise RoboCacheError(f"bench {name}: needs {missing}")
        program = (sys.executable, "-m", "robocache_ros.bench.suite.part_program", name)
        raise typer.Exit(subprocess.run([*program, *part.command, *context.args]).returncode)

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    words = f"{part.measures[0].upper()}{part.measures[1:]} (--help lists the options)."
    app.command(name, help=words, add_help_option=False, context_settings=settings)(run)
