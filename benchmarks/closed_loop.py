"""A policy in the loop with the simulated robot: how often it succeeds, by latency and by how its chunks are executed.

Run: python -m benchmarks.closed_loop CHECKPOINT [--spec config/so101.yaml] [--starts 30]

The engine fuses what the drivers of the simulation publish, as on a robot. Without ROS, so that a latency is exact: a
chunk of tick k arrives `latency` after it, in ticks. Writes closed_loop.json and closed_loop.md. `--demonstrations DIR`
writes recordings of the expert first, for `robocache export` and `examples/train_policy.py`, and does nothing else.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import machine
from robocache_ros.engine import FusionEngine, Ingest
from robocache_ros.engine.tick_grid import last_at_or_before
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
        Way("by tick, replan every 25", replan_every=25),
        Way("naive: first row on arrival, replan every 5", naive=True),
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


def evaluate(policy: TrainedPolicy, spec: FusionSpec, starts: int, chosen: list[Way]) -> Iterator[dict[str, Any]]:
    """Return the results of each way at each latency."""
    robot = Robot(spec)
    for way in chosen:
        for latency_ms in LATENCIES_MS:
            latency = -(-latency_ms * 1_000_000 // TICK_NS)
            runs = [episode(robot, policy, way, latency, seed) for seed in range(FIRST_START, FIRST_START + starts)]
            yield {
                "way": way.name,
                "latency_ms": latency_ms,
                "latency_ticks": latency,
                "starts": starts,
                "successes": sum(success for success, _ in runs),
                "largest_seam_step_rad": round(max(step for _, step in runs), 4),
            }


def as_text(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    names = list(dict.fromkeys(row["way"] for row in found["rows"]))
    by = {(row["way"], row["latency_ms"]): row for row in found["rows"]}
    lines = [
        "# A policy in the loop with the simulated robot",
        "",
        f"Successes of {found['starts']} starts that no demonstration has, by the latency from an observation to its",
        "chunk. In brackets: the largest step of a joint's command where one chunk follows another, in rad.",
        "",
        f"| chunks are executed | {' | '.join(f'{ms} ms' for ms in LATENCIES_MS)} |",
        f"|---|{'---|' * len(LATENCIES_MS)}",
    ]
    for name in names:
        cells = (by.get((name, ms)) for ms in LATENCIES_MS)
        shown = (f"{row['successes']} ({row['largest_seam_step_rad']:.2f})" if row else "" for row in cells)
        lines.append(f"| {name} | {' | '.join(shown)} |")
    policy, date = found["policy"], found["machine"]["date"]
    lines += [
        "",
        f"The policy: {policy['kind']}, {policy['layers']} layers of width {policy['width']}, a horizon of "
        f"{policy['horizon']} ticks of 20 ms, step {found['step']:,} of its training.",
        f"{date}; the counts do not depend on the speed of the machine.",
        "",
    ]
    return "\n".join(lines)


def state_spec(path: Path) -> FusionSpec:
    """The spec of a robot without its cameras, whose ticks do not wait: nothing of the state is late."""
    return replace(load_spec(path).without_cameras(), delay_ms=0.0, lead_ms=0.0)


def main() -> None:
    """Write demonstrations, or evaluate a checkpoint."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path, nargs="?", help="checkpoint.pt of examples/train_policy.py")
    parser.add_argument("--spec", type=Path, default=ROOT / "config/so101.yaml", help="Spec of the robot.")
    parser.add_argument("--starts", type=int, default=30, help="Episodes of each cell of the table.")
    parser.add_argument("--way", action="append", default=[], help="Only the ways whose name has this text.")
    parser.add_argument("--demonstrations", type=Path, metavar="DIR", help="Write these recordings, and end.")
    parser.add_argument("--episodes", type=int, default=360, help="Number of demonstrations.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results", help="Folder of the results.")
    given = parser.parse_args()
    if given.demonstrations is not None:
        options = SimOptions(camera=False, disturbance=DISTURBANCE_RAD)
        wanted = SimArguments(options, FIRST_DEMONSTRATION, given.episodes)
        write_demonstrations(given.demonstrations, wanted, print)
        return
    if given.checkpoint is None:
        parser.error("give a checkpoint, or --demonstrations DIR")
    torch.set_num_threads(1)
    policy = TrainedPolicy.load(given.checkpoint)
    chosen = [way for way in ways() if not given.way or any(text in way.name for text in given.way)]
    step = int(read_checkpoint(given.checkpoint)[0]["step"])
    found: dict[str, Any] = {"machine": machine(), "starts": given.starts, "rows": []}
    found |= {"policy": asdict(policy.policy.config), "step": step}
    for row in evaluate(policy, state_spec(given.spec), given.starts, chosen):
        found["rows"].append(row)
        print(json.dumps(row), flush=True)
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "closed_loop.json").write_text(json.dumps(found, indent=1) + "\n")
        (given.out / "closed_loop.md").write_text(as_text(found))


if __name__ == "__main__":
    main()
