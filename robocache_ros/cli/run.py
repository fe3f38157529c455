"""`robocache run`: a policy on a robot."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from robocache_ros.cli.options import SpecFile, with_options
from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import install_hint
from robocache_ros.spec.run import RunOptions


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
        Optional[str],  # noqa: UP045 - typer reads it at run time
        typer.Option(metavar="NODE", help="A fusion node that runs already; else one is started here."),
    ] = None,
    use_sim_time: Annotated[bool, typer.Option("--sim-time", help="Follow /clock.")] = False,
    record: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it at run time
        typer.Option(metavar="PATH", help="Record the run to a new .mcap file, for `robocache replay PATH --verify`."),
    ] = None,
    *,
    given: dict[str, Any],
) -> None:
    """Run a policy on a robot, or in a simulation, until Ctrl-C."""
    from robocache_ros.policy.outputs import Outputs
    from robocache_ros.policy.policies import check_policy
    from robocache_ros.spec import load_spec

    read = load_spec(spec)
    options = replace(read.run or RunOptions(), **given)
    Outputs(read, options)  # mistakes are reported before nodes start
    check_policy(policy, replace(read, run=options))
    try:
        from robocache_ros.nodes.policy_runner import run_policy
    except ImportError as error:
        if (hint := install_hint(error)) is None:
            raise
        raise RoboCacheError(hint) from None
    sys.exit(
        run_policy(
            policy, str(spec), device, fusion, given, use_sim_time=use_sim_time, record=str(record) if record else ""
        )
    )
