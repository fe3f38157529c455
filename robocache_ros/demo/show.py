"""`robocache demo`: replay a recording through a ROS 2 node, compare live with offline ticks, and export a dataset."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from rich.console import Group
from rich.live import Live as Screen
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from robocache_ros.bags.reader import Bag
from robocache_ros.cli.output.progress_display import shown_progress
from robocache_ros.cli.output.tables import console
from robocache_ros.demo.compare import Comparison, compare, recorded
from robocache_ros.demo.live import Live, running
from robocache_ros.demo.picture import draw
from robocache_ros.export.job import ExportResult, export
from robocache_ros.resources import resource
from robocache_ros.spec import FusionSpec, QosSpec, load_spec

REFRESH_HZ = 5
RATE_TOLERANCE = 0.02  # relative tolerance of the mean rate over the whole run
VALID_SHARE = 0.9  # minimum share of valid ticks, for every stream


@dataclass(frozen=True)
class Check:
    """One check of the demo."""

    passed: bool
    text: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 if all checks pass, else 1."""
    given = parser().parse_args(arguments)
    spec = with_reliable_qos(load_spec(given.spec))
    given.out.mkdir(parents=True, exist_ok=True)
    spec_file = given.out / "live.yaml"
    spec_file.write_text(yaml.safe_dump(spec.to_dict(), sort_keys=False), encoding="utf-8")
    console.rule("[bold]1. Live: the recording is replayed through a ROS 2 node")
    console.print(
        f"{given.bag} is replayed over DDS. A fusion node publishes ticks at {spec.rate_hz} Hz to a client.\n"
    )
    live = watch(given.bag, spec_file, spec, given.rate, given.out / "live.log")

    console.rule("[bold]2. Offline: the same recording without ROS")
    frames = recorded(given.bag, spec)
    comparison = compare(live.ticks, frames, spec)
    with Bag(given.bag) as bag:
        draw(given.out / "demo.png", bag, spec, frames)
    console.print(f"{comparison.compared} ticks compared bit for bit, {len(comparison.differing)} differ\n")

    console.rule("[bold]3. Export: a dataset and its quality report")
    dataset = given.out / "panda_lift"
    with shown_progress() as progress:
        result = export([given.bag], spec, dataset, overwrite=True, progress=progress)

    checks = checks_of(live, spec, given.rate, comparison, result)
    console.print(_summary(checks, advice(live, given.rate), given.out, dataset))
    return 0 if all(check.passed for check in checks) else 1


def with_reliable_qos(spec: FusionSpec) -> FusionSpec:
    """Return the spec with reliable subscriptions: every message arrives, so ticks can be compared bitwise."""
    qos = QosSpec(reliability="reliable", depth=1000)
    return replace(spec, streams=tuple(replace(stream, qos=qos) for stream in spec.streams))


def watch(bag: Path, spec_file: Path, spec: FusionSpec, rate: float, log: Path) -> Live:
    """Replay a recording through a node, with a live table of its streams."""
    with running(bag, spec_file, spec, rate, log) as (live, player):
        with Screen(_table(live, rate), console=console, refresh_per_second=REFRESH_HZ) as screen:
            while not player.done():
                time.sleep(1 / REFRESH_HZ)
                screen.update(_table(live, rate))
        return live


def checks_of(live: Live, spec: FusionSpec, rate: float, comparison: Comparison, result: ExportResult) -> list[Check]:
    """Return the checks of the demo, each with the measured value that decides it."""
    wanted = spec.rate_hz * rate
    least = {s.name: 1 - live.shares(i)[0] for i, s in enumerate(spec.streams)}
    worst = min(least, key=lambda name: least[name])
    even = abs(live.rate_hz - wanted) <= RATE_TOLERANCE * wanted
    return [
        Check(even and not live.missed, f"{len(live.ticks)} ticks at {live.rate_hz:.2f} Hz, {live.missed} missed"),
        Check(least[worst] >= VALID_SHARE, f"every stream valid at {least[worst]:.1%} of the ticks or more ({worst})"),
        Check(
            comparison.same,
            f"{comparison.compared - len(comparison.differing)} ticks equal the offline ones bit for bit, "
            f"{len(comparison.differing)} differ, {comparison.expected - comparison.compared} were not published",
        ),
        Check(
            result.frames > 0 and (result.out / "meta" / "info.json").is_file(),
            f"{result.frames} frames exported in {result.seconds:.1f} s ({result.times_real_time:.1f} x real time)",
        ),
        Check((result.out / "report.html").is_file(), "quality report written"),
    ]


def advice(live: Live, rate: float) -> list[str]:
    """Return what to do if ticks are missing. Those that were published are right all the same."""
    if not live.missed:
        return []
    slower = f'--rate {rate / 2:g} (make demo DEMO_ARGS="--rate {rate / 2:g}")'
    return [f"this computer was too busy for {rate:g} x: end other programs, or replay with {slower}"]


def _table(live: Live, rate: float) -> Group:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("stream")
    for name in ("Hz", "stamp to arrival", "aligned", "held", "invalid", "received", "dropped"):
        table.add_column(name, justify="right")
    for index, stream in enumerate(live.spec.streams):
        found = live.diagnostics.get(stream.name, {})
        invalid, aligned, held = live.shares(index)
        delay = found.get("age_ms_mean", "")
        table.add_row(
            stream.name,
            f"{float(found['rate_hz']):.1f}" if found.get("rate_hz") else "-",
            f"{float(delay):.1f} ms" if delay and stream.stamp == "header" else "-",
            f"[green]{aligned:.1%}[/]",
            f"[yellow]{held:.1%}[/]" if held else "0 %",
            f"[red]{invalid:.1%}[/]" if invalid else "0 %",
            found.get("received", "-"),
            found.get("dropped", "-"),
        )
    speed = "" if rate == 1 else f" at {rate:g} x"
    line = Text(f"\nfused: {len(live.ticks)} ticks, {live.rate_hz:.2f} Hz{speed}, {live.missed} missed", style="bold")
    return Group(table, line)


def _summary(checks: Sequence[Check], hints: Sequence[str], out: Path, dataset: Path) -> Panel:
    lines = [f"[{'green]passed' if c.passed else 'bold red]FAILED'}[/]  {c.text}" for c in checks]
    lines += [f"[yellow]{text}[/]" for text in hints]
    lines += [
        "",
        "[bold]next[/]",
        f"  {out / 'demo.png'}    the messages received and the tensors published",
        f"  {dataset / 'report.html'}    the quality of the recording",
        f"  {dataset}    the LeRobot dataset: LeRobotDataset('panda_lift', root='{dataset}')",
        "  robocache info YOUR_BAG --write-spec robot.yaml    start with your own recording",
    ]
    return Panel(
        "\n".join(lines), title="RoboCache ROS demo", border_style="green" if all(c.passed for c in checks) else "red"
    )


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = argparse.ArgumentParser(prog="robocache demo", description=__doc__)
    checkout = resource("package.xml").parent
    made.add_argument(
        "--bag",
        type=Path,
        default=checkout / "test" / "data" / "panda_lift",
        help="Recording to replay (default: %(default)s).",
    )
    made.add_argument(
        "--spec", type=Path, default=resource("config", "panda_lift.yaml"), help="Fusion spec (default: %(default)s)."
    )
    made.add_argument("--out", type=Path, default=Path("out"), help="Folder for the results (default: %(default)s).")
    made.add_argument(
        "--rate", type=float, default=1.0, help="Speed of the replay; 1.0 is real time (default: %(default)s)."
    )
    return made
