"""Policies in the loop with the simulated robot: how often they succeed, by latency and by how chunks are executed.

Run: python -m benchmarks.closed_loop NAME=CHECKPOINT … [--spec config/so101.yaml] [--starts 50] [--jobs 16]

The engine fuses what the drivers of the simulation publish, as on a robot. Without ROS, so that a latency is exact: a
chunk of tick k arrives `latency` after it, in ticks. Writes closed_loop.json and closed_loop.md. `--demonstrations DIR`
writes recordings of the expert first, for `robocache export` and `examples/train_policy.py`, and does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.processes import end_on_sigterm
from benchmarks.report import machine
from robocache_ros.engine import FusionEngine, Ingest
from robocache_ros.engine.tick_grid import last_at_or_before
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.policy.plan import ActionPlan, Chunk, PlanOptions
from robocache_ros.sim.command import SimArguments, write_demonstrations
from robocache_ros.sim.simulation import TICK_NS, SimOptions, Simulation
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.training.checkpoints import read_checkpoint
from robocache_ros.training.trained_policy import TrainedPolicy

ROOT = Path(__file__).parents[1]
FIRST_START = 0  # seeds of the starts; those of demonstrations begin at FIRST_DEMONSTRATION
FIRST_DEMONSTRATION = 1000
DISTURBANCE_RAD = 0.015
LATENCIES_MS = (0, 150, 300)
LONGEST_TICKS = 600


@dataclass(frozen=True)
class Way:
    """A way to execute the chunks of a policy.

    Attributes:
        name: of it.
        replan_every: ticks from an observation to the next one that a chunk is planned from.
        plan: how rows become commands.
        naive: execute each chunk from its first row on when it arrives, whatever the tick of its observation.
        frozen: plan from the first observation of the episode, always.
    """

    name: str
    replan_every: int = 5
    plan: PlanOptions = field(default_factory=PlanOptions)
    naive: bool = False
    frozen: bool = False


def ways() -> list[Way]:
    """What is compared."""
    return [
        Way("by tick, replan every 5"),
        Way("by tick, replan every 5, rows from 5 on", plan=PlanOptions(execute_from=5)),
        Way("by tick, replan every 5, rows from 10 on", plan=PlanOptions(execute_from=10)),
        Way("by tick, replan every 5, ensemble", plan=PlanOptions(blend="ensemble")),
        Way("by tick, replan every 5, rows from 10 on, ensemble", plan=PlanOptions(execute_from=10, blend="ensemble")),
        Way("by tick, replan every 25", replan_every=25),
        Way("by tick, replan every 25, crossfade 5", 25, PlanOptions(blend="crossfade", crossfade_ticks=5)),
        Way("naive: first row on arrival, replan every 5", naive=True),
        Way("naive: first row on arrival, replan every 25", replan_every=25, naive=True),
        Way("frozen observation", frozen=True),
    ]


class Robot:
    """The simulation with the engine that fuses its messages."""

    def __init__(self, spec: FusionSpec) -> None:
        self.simulation = Simulation(SimOptions(camera=False))
        self._spec = spec
        self._stream_of = {stream.topic: stream.name for stream in spec.streams}

    def begin(self, seed: int) -> None:
        """Begin an episode, with an engine that knows nothing of the last one."""
        self.simulation.begin(seed, expert=False)
        self.engine = FusionEngine(self._spec, unbounded=True)
        self._ingest = Ingest(self._spec, self.engine)

    def observe(self) -> dict[str, torch.Tensor]:
        """Take what is published now, and return the streams of the tick that it is, (1, D) each."""
        for message in self.simulation.publish():
            if (name := self._stream_of.get(message.topic)) is not None:
                self._ingest.serialized(name, message.data, message.log_ns)
        if not self.simulation.at_tick:
            return {}
        ticks = np.array([self.simulation.now_ns])
        frames = self.engine.resolve(ticks)
        self.engine.prune(self.simulation.now_ns)
        found, at = {}, 0
        for stream in self._spec.vectors:
            found[stream.name] = frames.fused[:, at : at + stream.dim]
            at += stream.dim
        return found


def episode(robot: Robot, policy: TrainedPolicy, way: Way, latency: int, seed: int) -> tuple[bool, float]:
    """Run an episode; return its success and the largest step of the commands at a seam between chunks, in rad."""
    robot.begin(seed)
    torch.manual_seed(seed)  # the noise of a diffusion policy
    simulation = robot.simulation
    plan = ActionPlan(["linear"] * 5 + ["hold"], way.plan)
    arriving: list[tuple[int, Chunk]] = []
    first: dict[str, torch.Tensor] = {}
    last, seam = None, 0.0
    for number in range(LONGEST_TICKS):
        observed = robot.observe()
        tick = last_at_or_before(simulation.now_ns, 50)
        first = first or observed
        if number % way.replan_every == 0:
            actions = policy.act(first if way.frozen else observed)[0].numpy()
            arriving.append((tick + latency, Chunk(tick, actions)))
        while arriving and arriving[0][0] <= tick:
            _, chunk = arriving.pop(0)
            plan.add(Chunk(tick, chunk.actions) if way.naive else chunk)
        command = plan.take(tick)
        if command is not None:
            if command.is_seam and last is not None:
                seam = max(seam, float(np.abs(command.row[:5] - last[:5]).max()))
            last = command.row
            simulation.command(command.row.astype(np.float64))
        for _ in range(10):
            simulation.step()
            if not simulation.at_tick:
                robot.observe()
        if simulation.episode_has_ended:
            break
    return simulation.robot.is_success, seam


@dataclass(frozen=True)
class Cell:
    """A cell of the table: a policy, a way, a latency.

    Attributes:
        policy: name of the policy.
        checkpoint: its file.
        spec: of the robot.
        way: how chunks are executed.
        latency_ms: from an observation to its chunk.
        starts: episodes.
    """

    policy: str
    checkpoint: Path
    spec: Path
    way: Way
    latency_ms: int
    starts: int


@cache
def _policy(checkpoint: Path) -> TrainedPolicy:
    torch.set_num_threads(1)
    return TrainedPolicy.load(checkpoint)


@cache
def _robot(spec: Path) -> Robot:
    return Robot(state_spec(spec))


def evaluate(cell: Cell) -> dict[str, Any]:
    """Run the episodes of a cell."""
    policy, robot = _policy(cell.checkpoint), _robot(cell.spec)
    latency = -(-cell.latency_ms * 1_000_000 // TICK_NS)
    runs = [episode(robot, policy, cell.way, latency, seed) for seed in range(FIRST_START, FIRST_START + cell.starts)]
    return {
        "policy": cell.policy,
        "way": cell.way.name,
        "latency_ms": cell.latency_ms,
        "latency_ticks": latency,
        "starts": cell.starts,
        "successes": sum(success for success, _ in runs),
        "largest_seam_step_rad": round(max(step for _, step in runs), 4),
    }


def evaluate_all(cells: list[Cell], jobs: int) -> Iterator[dict[str, Any]]:
    """Run the episodes of all cells, and return their results in the order of the cells."""
    if jobs == 1:
        yield from map(evaluate, cells)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(evaluate, cells)


def as_text(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "# Policies in the loop with the simulated robot",
        "",
        f"Successes of {found['starts']} starts that no demonstration has, by the latency from an observation to its",
        "chunk. In brackets: the largest step of a joint's command where one chunk follows another, in rad.",
    ]
    for name, policy in found["policies"].items():
        by = {(row["way"], row["latency_ms"]): row for row in found["rows"] if row["policy"] == name}
        lines += [
            "",
            f"## {name}",
            "",
            f"{policy['kind'].capitalize()}, {policy['layers']} layers of width {policy['width']}, a horizon of "
            f"{policy['horizon']} ticks of 20 ms, step {policy['step']:,} of its training.",
            "",
            f"| chunks are executed | {' | '.join(f'{ms} ms' for ms in LATENCIES_MS)} |",
            f"|---|{'---|' * len(LATENCIES_MS)}",
        ]
        for way in dict.fromkeys(way for way, _ in by):
            cells = (by.get((way, ms)) for ms in LATENCIES_MS)
            shown = (f"{row['successes']} ({row['largest_seam_step_rad']:.2f})" if row else "" for row in cells)
            lines.append(f"| {way} | {' | '.join(shown)} |")
    lines += [
        "",
        "Demonstrations and training: `python -m benchmarks.closed_loop --demonstrations DIR`, `robocache export DIR` "
        "to `robomimic` with the",
        "spec without its camera, and `examples/train_policy.py` with `--n-obs 1 --horizon 50 --batch-size 64`.",
    ]
    lines += ["", f"{found['machine']['date']}; the counts do not depend on the speed of the machine.", ""]
    return "\n".join(lines)


def named(text: str) -> tuple[str, Path]:
    """Read NAME=CHECKPOINT; the name of CHECKPOINT alone is that of its folder."""
    name, found, path = text.rpartition("=")
    checkpoint = Path(path)
    if not checkpoint.is_file():
        raise RoboCacheError(f"{printable(path, 80)} does not exist; give a checkpoint.pt of examples/train_policy.py")
    return (name if found else checkpoint.resolve().parent.name), checkpoint


def described(checkpoint: Path) -> dict[str, Any]:
    """What the table says of a policy."""
    policy = TrainedPolicy.load(checkpoint)
    return asdict(policy.policy.config) | {"step": int(read_checkpoint(checkpoint)[0]["step"])}


def state_spec(path: Path) -> FusionSpec:
    """The spec of a robot without its cameras, whose ticks do not wait: nothing of the state is late."""
    return replace(load_spec(path).without_cameras(), delay_ms=0.0, lead_ms=0.0)


def main() -> None:
    """Write demonstrations, or evaluate checkpoints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", nargs="*", help="[NAME=]checkpoint.pt of examples/train_policy.py")
    parser.add_argument("--spec", type=Path, default=ROOT / "config/so101.yaml", help="Spec of the robot.")
    parser.add_argument("--starts", type=int, default=50, help="Episodes of each cell of the table.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="Processes.")
    parser.add_argument("--way", action="append", default=[], help="Only the ways whose name has this text.")
    parser.add_argument("--demonstrations", type=Path, metavar="DIR", help="Write these recordings, and end.")
    parser.add_argument("--episodes", type=int, default=560, help="Number of demonstrations.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results", help="Folder of the results.")
    given = parser.parse_args()
    if given.demonstrations is not None:
        options = SimOptions(camera=False, disturbance=DISTURBANCE_RAD)
        wanted = SimArguments(options, FIRST_DEMONSTRATION, given.episodes)
        write_demonstrations(given.demonstrations, wanted, print)
        return
    if not given.checkpoint:
        parser.error("give a checkpoint, or --demonstrations DIR")
    end_on_sigterm()
    checkpoints = dict(named(text) for text in given.checkpoint)
    chosen = [way for way in ways() if not given.way or any(text in way.name for text in given.way)]
    cells = [
        Cell(name, checkpoint, given.spec, way, latency_ms, given.starts)
        for name, checkpoint in checkpoints.items()
        for way in chosen
        for latency_ms in LATENCIES_MS
    ]
    found: dict[str, Any] = {"machine": machine(), "starts": given.starts, "rows": []}
    found |= {"policies": {name: described(checkpoint) for name, checkpoint in checkpoints.items()}}
    for row in evaluate_all(cells, given.jobs):
        found["rows"].append(row)
        print(json.dumps(row), flush=True)
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "closed_loop.json").write_text(json.dumps(found, indent=1) + "\n")
        (given.out / "closed_loop.md").write_text(as_text(found))


if __name__ == "__main__":
    main()
