"""`robocache run` and `replay`: a policy on a robot, and the same run computed again."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robocache_ros.cli.options import AsJson, OptionalInt, OptionalPath, OptionalText, SpecFile, with_options
from robocache_ros.cli.program import finish
from robocache_ros.cli.terminal import pressed_keys
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec.run import RunOptions

if TYPE_CHECKING:
    from robocache_ros.nodes.policy_runner import PolicyRunner

KEYS = "t: take over, or give back; s: stop; a: arm; q: quit"


@with_options(RunOptions)
def run(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY",
            help="CHECKPOINT.pt, a LeRobot folder, MODULE:FUNCTION, FILE.py:FUNCTION, openpi://HOST:PORT or "
            "gr00t://HOST:PORT.",
        ),
    ],
    spec: SpecFile,
    device: Annotated[str, typer.Option(help="Device of a checkpoint: cpu, cuda, cuda:<index>.")] = "cpu",
    fusion: Annotated[
        OptionalText, typer.Option(metavar="NODE", help="A fusion node that runs already; else one is started here.")
    ] = None,
    use_sim_time: Annotated[bool, typer.Option("--sim-time", help="Follow /clock.")] = False,
    record: Annotated[
        OptionalPath,
        typer.Option(metavar="PATH", help="Record the run to a new .mcap file, for `robocache replay PATH --verify`."),
    ] = None,
    takeover_button: Annotated[
        OptionalInt, typer.Option(metavar="BUTTON", help="Button of a game pad on /joy that takes over while pressed.")
    ] = None,
    pedal: Annotated[
        OptionalText,
        typer.Option(metavar="DEVICE", help="Foot pedal that takes over while pressed, such as /dev/input/by-id/..."),
    ] = None,
    pedal_keys: Annotated[
        OptionalText, typer.Option(metavar="takeover=KEY", help="Its key. (takeover=KEY_B)", show_default=False)
    ] = None,
    *,
    given: dict[str, Any],
) -> None:
    """Run a policy on a robot, or in a simulation, until Ctrl-C. Keys: t takes over or gives back, s stops, a arms."""
    from robocache_ros.policy.joint_limits import read_urdf_files
    from robocache_ros.policy.outputs import Outputs
    from robocache_ros.policy.policies import check_policy
    from robocache_ros.spec import load_spec

    read = load_spec(spec)
    options = replace(read.run or RunOptions(), **given)
    urdfs = read_urdf_files(options, Path(str(spec)).parent)
    known = options.without_urdfs() if options.urdf_topics else options  # the node reads those of topics
    Outputs(read, known, urdfs)  # mistakes are reported before nodes start
    check_policy(policy, replace(read, run=options))
    from robocache_ros.nodes.policy_runner import run_policy

    operator = {"takeover_button": takeover_button, "pedal": pedal, "pedal_keys": pedal_keys}
    code = run_policy(
        policy,
        str(spec),
        device,
        fusion,
        {name: str(value) for name, value in given.items()}
        | {name: value for name, value in operator.items() if value is not None},
        use_sim_time=use_sim_time,
        record=str(record) if record else "",
        control=control,
    )
    sys.exit(code)


def control(node: "PolicyRunner", running: Callable[[], bool]) -> bool:
    """Do what keys and lines of stdin say, while it runs; returns whether to quit. Without stdin, do nothing."""
    if sys.stdin is None or (sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp()):
        return False  # in the background, where a terminal stops who reads from it
    if sys.stdin.isatty():
        node.get_logger().info(KEYS)
    for key in pressed_keys(running):
        action = {"t": "takeover", "s": "stop", "a": "arm", "q": "quit"}.get(key, key)
        if action == "quit":
            return True
        if action not in ("takeover", "stop", "arm"):
            node.get_logger().warning(f"{printable(key, 20)!r} is no action; {KEYS}")
        else:
            node.act(action)
    return False


def replay(
    run: Annotated[
        Path, typer.Argument(help="A run log: of `robocache run --record`, or of a node's parameter record_run.")
    ],
    verify: Annotated[bool, typer.Option("--verify", help="Compare all that is computed with the run.")] = False,
    policy: Annotated[
        OptionalText,
        typer.Option(
            "--policy",
            metavar="POLICY",
            help="Plans again; it must give the same plan for the same frame. (the checkpoint of the run, if it "
            "planned on the CPU)",
            show_default=False,
        ),
    ] = None,
    first: Annotated[
        OptionalInt,
        typer.Option("--from", metavar="TICK", help="With --export: the first tick, by its index on the tick grid."),
    ] = None,
    last: Annotated[OptionalInt, typer.Option("--to", metavar="TICK", help="With --export: the last tick.")] = None,
    export: Annotated[
        OptionalPath,
        typer.Option("--export", metavar="PATH", help="Write the part of the run that recomputes these ticks."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Recompute a run to the bit; exit code 1 if it differs, with the first tick, its stream and its column."""
    from robocache_ros.policy import replay as runs

    if export is not None:
        if first is None or last is None:
            raise RoboCacheError("replay: --export needs --from and --to; give two ticks that --verify names")
        found = runs.cut(run, export, first, last, policy)
    elif verify:
        found = runs.verify(run, policy)
    else:
        raise RoboCacheError("replay: nothing to do; give --verify, or --from, --to and --export")
    path = export or run

    def show() -> None:
        for note in found.notes:
            typer.echo(f"note: {note}")
        if found.first:
            typer.echo(f"the first difference: {found.first}")
        typer.echo(f"{printable(path.name, 60)}: {found}")

    finish("replay", {"run": path, **vars(found)}, show, json=json, code=int(found.first is not None))
