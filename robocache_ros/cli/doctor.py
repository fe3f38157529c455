"""`robocache doctor`: what would make a trained policy see or do something else than in its training."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robocache_ros.cli.options import AsJson, OptionalText, SpecFile, place, with_options
from robocache_ros.cli.program import finish
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec.run import RunOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from robocache_ros.engine.frames import FusedFrame
    from robocache_ros.policy.doctor import Finding
    from robocache_ros.policy.observed_values import Observed
    from robocache_ros.policy.trained_facts import TrainedFacts
    from robocache_ros.spec import FusionSpec

LIVE_S, WAIT_S = 5.0, 20.0  # of ticks; until the first one


@with_options(RunOptions, "replan_every", "offset", "execute_from")
def doctor(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint.pt, or the folder of a checkpoint of LeRobot.")
    ],
    spec: SpecFile,
    given: dict[str, Any],
    bag: Annotated[
        OptionalText, typer.Option("--bag", parser=place, metavar="BAG", help="Compare the values of a recording too.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Compare the values of a fusion node that runs.")] = False,
    fusion: Annotated[str, typer.Option(metavar="NODE", help="With --live: the name of the node.")] = "fusion_node",
    seconds: Annotated[float, typer.Option(min=0.5, max=600, help="With --live: how long.")] = LIVE_S,
    device: Annotated[str, typer.Option(help="Device of the policy: cpu, cuda, cuda:<index>.")] = "cpu",
    json: AsJson = False,
) -> None:
    """Compare what a checkpoint was trained on with a spec, a recording or a node; exit code 1 after an error.

    One line for each comparison: errors, warnings, what is as in training, and what cannot be compared.
    """
    from robocache_ros.policy import doctor as checks
    from robocache_ros.policy.trained_facts import trained_facts
    from robocache_ros.spec import load_spec

    if bag and live:
        raise RoboCacheError("doctor: --bag and --live; give one of them")
    facts, read = trained_facts(checkpoint), load_spec(spec)
    read = replace(read, run=replace(read.run or RunOptions(), **given))
    findings = checks.check_spec(facts, read, device)
    if bag or live:
        findings += _values(checkpoint, facts, read, bag, fusion, seconds)

    def show() -> None:
        for finding in sorted(findings, key=lambda each: checks.LEVELS.index(each.level)):
            typer.echo(printable(f"{finding.level}: {finding}", 400))

    lines = [str(finding) for finding in findings if finding.level == checks.ERROR]
    content = {"checkpoint": checkpoint, "spec_file": spec, "bag": bag, **checks.summary(findings)}
    finish("doctor", content, show, json=json, code=int(bool(lines)), errors=lines)


def _values(
    checkpoint: str, facts: "TrainedFacts", spec: "FusionSpec", bag: "str | None", fusion: str, seconds: float
) -> list["Finding"]:
    from robocache_ros.policy import observed_values
    from robocache_ros.policy.doctor import UNCHECKED, Finding
    from robocache_ros.policy.outputs import run_offset
    from robocache_ros.storage.paths import any_path
    from robocache_ros.training.trained_policy import TrainedPolicy

    used = observed_values.used_streams(facts, spec)
    if used is None:
        return [Finding(UNCHECKED, "values", "no stream of the checkpoint is in the spec")]
    observed, findings = (
        _listen(used, fusion, seconds)
        if bag is None
        else observed_values.observe_bag(any_path(bag, "recordings"), used, observed_values.label_visibility(facts))
    )
    if observed is None:
        return findings
    policy = None if facts.lerobot else TrainedPolicy.load(checkpoint)
    return [
        *findings,
        *observed_values.check_values(facts, observed, policy, run_offset(spec, spec.run or RunOptions())),
    ]


def _listen(spec: "FusionSpec", fusion: str, seconds: float) -> tuple["Observed | None", list["Finding"]]:
    """Read the ticks of a node for some seconds."""
    import torch

    from robocache_ros.client import FusedSubscriber
    from robocache_ros.policy.doctor import check_node
    from robocache_ros.policy.observed_values import IMAGES, observe_frames

    images = [stream.name for stream in spec.media]
    with FusedSubscriber(fusion, images=images, dtype=torch.uint8, timeout_s=WAIT_S) as ticks:
        node = ticks.wait_for_layout(WAIT_S).spec

        def frames() -> "Iterator[FusedFrame]":
            end = None
            for frame in ticks:
                yield frame
                end = end or time.monotonic() + seconds
                if time.monotonic() >= end:
                    return

        observed = observe_frames(frames(), max(1, int(seconds * node.rate_hz / IMAGES)))
    return observed, check_node(spec, node)
