"""Policies in the loop with the simulated robot: how often they succeed, by latency and by how chunks are executed.

Run: python -m benchmarks.closed_loop NAME=POLICY … [--spec config/so101.yaml] [--camera] [--starts 50] [--jobs 16]

POLICY is what `robocache run` takes: a checkpoint of examples/train_policy.py, or that of another library. The engine
fuses what the drivers of the simulation publish, as on a robot. Without ROS, so that a latency is exact: the chunk of
a frame arrives `latency` after the frame, in ticks. Writes closed_loop.json and closed_loop.md; the rows of earlier
runs stay where their policy is not measured again.

`--demonstrations DIR` does nothing else than record demonstrations of the expert, through ROS 2 and the episode
recorder, in `--jobs` pairs of simulation and recorder at once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import runpy
import textwrap
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.processes import end_on_sigterm
from benchmarks.report import machine
from robocache_ros.engine import FusionEngine, Ingest
from robocache_ros.engine.frames import FusedFrame, split_window
from robocache_ros.engine.tick_grid import last_at_or_before
from robocache_ros.policy.outputs import Outputs
from robocache_ros.policy.plan import Chunk
from robocache_ros.policy.policies import RunnablePolicy, kind_of, open_policy
from robocache_ros.sim.simulation import TICK_NS, SimOptions, Simulation
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.run import OutputSpec, RunOptions

ROOT = Path(__file__).parents[1]
FIRST_START = 0  # seeds of the starts; those of demonstrations begin at FIRST_DEMONSTRATION
FIRST_DEMONSTRATION = 1000
DISTURBANCES_RAD = (0.015, 0.03, 0.045)  # of one process and the next; at the largest, the expert misses some blocks
LATENCIES_MS = (0, 150, 300)
PREFIXES = (1, 8, 15)  # rows that a policy continues
LONGEST_TICKS = 600
PART = 5  # episodes that a process runs at a time
GRIPPER = "gripper"  # the component of the action that is not blended


@dataclass(frozen=True)
class Way:
    """A way to execute the chunks of a policy.

    Attributes:
        name: of it.
        run: the options of `robocache run`.
        naive: execute each chunk from its first row on when it arrives, whatever the tick of its observation.
        frozen: plan from the first observation of the episode, always.
    """

    name: str
    run: RunOptions = field(default_factory=RunOptions)
    naive: bool = False
    frozen: bool = False


def ways() -> list[Way]:
    """What is compared."""
    default, often = RunOptions(), RunOptions(replan_every=5, blend="none")
    return [
        Way(f"default: replan every {default.replan_every}, {default.blend} {default.crossfade_ticks}", default),
        Way("replan every 20, crossfade 8", replace(default, replan_every=20)),
        Way("replan every 5, crossfade 4", replace(default, replan_every=5, crossfade_ticks=4)),
        Way("replan every 20", replace(default, replan_every=20, blend="none")),
        Way("replan every 10", replace(default, blend="none")),
        Way("replan every 5", often),
        Way("replan every 10, ensemble", replace(default, blend="ensemble")),
        Way("replan every 5, ensemble", replace(often, blend="ensemble")),
        *(Way(f"prefix {rows}", replace(default, prefix=rows)) for rows in PREFIXES),
        Way("naive: first row on arrival, replan every 5", often, naive=True),
        Way("naive: first row on arrival, replan every 10", replace(default, blend="none"), naive=True),
        Way("frozen observation, default", default, frozen=True),
    ]


class Robot:
    """The simulation with the engine that fuses its messages.

    Attributes:
        spec: of the robot; its cameras are rendered.
    """

    def __init__(self, spec: FusionSpec) -> None:
        self.simulation = Simulation(SimOptions(camera=any(stream.kind == "image" for stream in spec.streams)))
        self.spec = spec
        self._stream_of = {stream.topic: stream.name for stream in spec.streams}
        self._rows: deque[torch.Tensor] = deque(maxlen=spec.horizon)
        self._observed = np.array([stream.role == "observation" for stream in spec.streams])

    def begin(self, seed: int) -> None:
        """Begin an episode, with an engine that knows nothing of the last one."""
        self.simulation.begin(seed, expert=False)
        self.engine = FusionEngine(self.spec)
        self._ingest = Ingest(self.spec, self.engine)
        self._rows.clear()

    def observe(self) -> FusedFrame | None:
        """Take what is published now, and return the frame that becomes due, if one does."""
        now_ns = self.simulation.now_ns
        for message in self.simulation.publish():
            if (name := self._stream_of.get(message.topic)) is not None:
                self._ingest.serialized(name, message.data, message.log_ns)
        frames = self.engine.advance(now_ns, limit=1)
        if not len(frames):
            return None
        self._rows.append(frames.rows()[0])
        if not frames.valid[0, self._observed].all() or len(self._rows) < self.spec.horizon:
            return None
        frame = split_window(self.engine.layout, int(frames.ticks_ns[0]), torch.stack(list(self._rows)))
        return replace(frame, tensors=frame.tensors | {name: each[0].clone() for name, each in frames.media.items()})


def episode(robot: Robot, policy: RunnablePolicy, way: Way, latency: int, seed: int) -> tuple[bool, float]:
    """Run an episode; return its success and the largest step of the commands at a seam between chunks, in rad."""
    robot.begin(seed)
    torch.manual_seed(seed)  # the noise of a diffusion policy
    simulation, run = robot.simulation, way.run
    outputs = Outputs(robot.engine.spec, replace(run, outputs=(OutputSpec("action", discrete=(GRIPPER,)),)))
    plan = outputs.plan()
    arriving: deque[tuple[int, Chunk]] = deque()
    first: FusedFrame | None = None
    planned = None
    sent: dict[int, NDArray[np.float32]] = {}
    last, seam = None, 0.0
    for _ in range(LONGEST_TICKS):
        now = last_at_or_before(simulation.now_ns, robot.engine.spec.rate_hz)
        frame = robot.observe()
        if frame is not None:
            tick = last_at_or_before(frame.tick_ns, robot.engine.spec.rate_hz)
            first = first or frame
            if planned is None or tick - planned >= run.replan_every:
                planned = tick
                prefix = plan.prefix(tick, sent) if policy.takes_prefix else None
                actions = policy.plan(first if way.frozen else frame, tick, prefix).actions
                arriving.append((now + latency, Chunk(tick, actions)))
        while arriving and arriving[0][0] <= now:
            _, chunk = arriving.popleft()
            plan.add(Chunk(now, chunk.actions) if way.naive else chunk)
        command = plan.take(now)
        if command is not None:
            if command.is_seam and last is not None:
                seam = max(seam, float(np.abs(command.row[:5] - last[:5]).max()))
            sent[now] = last = command.row
            simulation.command(command.row.astype(np.float64))
        simulation.step()
        while not simulation.at_tick:
            robot.observe()
            simulation.step()
        if simulation.episode_has_ended:
            break
    return simulation.robot.is_success, seam


@dataclass(frozen=True)
class Cell:
    """A cell of the table: a policy, a way, a latency.

    Attributes:
        name: of the policy.
        policy: as `robocache run` takes it.
        device: of the policy.
        spec: file of the robot's spec.
        camera: whether the policy sees images.
        way: how chunks are executed.
        latency_ms: from a frame to the chunk that is planned from it.
        starts: episodes.
        first: seed of the first one.
    """

    name: str
    policy: str
    device: str
    spec: Path
    camera: bool
    way: Way
    latency_ms: int
    starts: int
    first: int = FIRST_START


@cache
def _opened(policy: str, spec: FusionSpec, device: str) -> RunnablePolicy:
    torch.set_num_threads(1)
    return open_policy(policy, spec, device)


@cache
def _robot(path: Path, camera: bool) -> Robot:
    return Robot(robot_spec(path, camera))


def robot_spec(path: Path, camera: bool) -> FusionSpec:
    """The spec of a robot; without its cameras its ticks do not wait, since nothing of the state is late."""
    spec = load_spec(path)
    return spec if camera else replace(spec.without_cameras(), delay_ms=0.0, lead_ms=0.0)


def evaluate(cell: Cell) -> dict[str, Any]:
    """Run the episodes of a cell."""
    robot = _robot(cell.spec, cell.camera)
    policy = _opened(cell.policy, robot.spec, cell.device)
    latency = -(-cell.latency_ms * 1_000_000 // TICK_NS)
    runs = [episode(robot, policy, cell.way, latency, seed) for seed in range(cell.first, cell.first + cell.starts)]
    return {
        "policy": cell.name,
        "way": cell.way.name,
        "latency_ms": cell.latency_ms,
        "latency_ticks": latency,
        "starts": cell.starts,
        "successes": sum(success for success, _ in runs),
        "largest_seam_step_rad": round(max(step for _, step in runs), 4),
    }


def evaluate_all(cells: list[Cell], jobs: int) -> Iterator[dict[str, Any]]:
    """Run the episodes of all cells, a few in each process, and return the results in the order of the cells."""
    parts = [
        [
            replace(cell, first=first, starts=min(PART, cell.first + cell.starts - first))
            for first in range(cell.first, cell.first + cell.starts, PART)
        ]
        for cell in cells
    ]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        results = pool.map(evaluate, itertools.chain.from_iterable(parts))
        for cell, of_cell in zip(cells, parts, strict=True):
            rows = list(itertools.islice(results, len(of_cell)))
            yield rows[0] | {
                "starts": cell.starts,
                "successes": sum(row["successes"] for row in rows),
                "largest_seam_step_rad": max(row["largest_seam_step_rad"] for row in rows),
            }


INTRODUCTION = """# Policies in the loop with the simulated robot

Successes of {starts} starts that no demonstration has, by the latency from a frame to the chunk planned from it.
In brackets: the largest step of a joint's command where one chunk follows another, in rad. A row of a chunk is executed
at its tick, except in the naive runners, which execute a chunk from its first row on when it arrives. A frame of the
state is planned from at its tick; one with an image 60 ms after its tick, to which the latency is added.
"""


def as_text(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [INTRODUCTION.format(starts=found["starts"])]
    for name, note in found["policies"].items():
        by = {(row["way"], row["latency_ms"]): row for row in found["rows"] if row["policy"] == name}
        lines += [
            f"## {name}",
            "",
            *([textwrap.fill(note, 118), ""] if note else []),
            f"| chunks are executed | {' | '.join(f'{ms} ms' for ms in LATENCIES_MS)} |",
            f"|---|{'---|' * len(LATENCIES_MS)}",
        ]
        for way in dict.fromkeys(way for way, _ in by):
            cells = (by.get((way, ms)) for ms in LATENCIES_MS)
            shown = (f"{row['successes']} ({row['largest_seam_step_rad']:.2f})" if row else "" for row in cells)
            lines.append(f"| {way} | {' | '.join(shown)} |")
        lines.append("")
    lines += [f"{found['machine']['date']}; the counts do not depend on the speed of the machine.", ""]
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the successes of each way over the latency, a panel for each policy."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names, columns = list(found["policies"]), 4
    height = -(-len(names) // columns)
    figure, panels = pyplot.subplots(height, columns, figsize=(13, 3.2 * height), sharey=True, squeeze=False)
    for panel in panels.flat[len(names) :]:
        panel.set_axis_off()
    for panel, name in zip(panels.flat, names, strict=False):
        rows = [row for row in found["rows"] if row["policy"] == name]
        for way in dict.fromkeys(row["way"] for row in rows):
            points = sorted(
                (row["latency_ms"], 100 * row["successes"] / row["starts"]) for row in rows if row["way"] == way
            )
            style = "--" if way.startswith(("naive", "frozen")) else "-"
            panel.plot(*zip(*points, strict=True), style, marker="o", markersize=3, label=way)
        panel.set_title(name, fontsize=9)
        panel.set_xlabel("latency, ms")
        panel.set_ylim(-3, 103)
        panel.legend(fontsize=5, frameon=False)
    for panel in panels[:, 0]:
        panel.set_ylabel("successes, %")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def named(text: str) -> tuple[str, str]:
    """Read NAME=POLICY; the name of POLICY alone is that of its folder."""
    name, found, policy = text.rpartition("=")
    kind_of(policy)
    return (name if found else Path(policy).resolve().parent.name), policy


def record_demonstrations(out: Path, seeds: range, jobs: int, *, camera: bool, spec: Path, recoveries: float) -> None:
    """Record episodes of the expert in `jobs` processes, each with a simulation and a recorder of its own."""
    share = -(-len(seeds) // jobs)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        parts = [
            pool.submit(_record, out / f"part_{job:02d}", spec, seeds[first : first + share], job, camera, recoveries)
            for job, first in enumerate(range(0, len(seeds), share))
        ]
        found = [success for part in parts for success in part.result()]
    print(f"{out}: {len(found)} episodes, of which {len(found) - sum(found)} are failures")


def _record(out: Path, spec: Path, seeds: range, job: int, camera: bool, recoveries: float) -> list[bool]:
    os.environ |= {"ROS_DOMAIN_ID": str(1 + job), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    loop = SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "close_the_loop.py")))
    out.mkdir(parents=True)
    if not camera:
        spec = out / "spec.yaml"
        loop.write_spec(spec)
    observer = loop.Observer(scenes=False)
    try:
        disturbance = DISTURBANCES_RAD[job % len(DISTURBANCES_RAD)]
        simulation = ("--rate", 0, "--disturbance", disturbance, "--recoveries", recoveries)
        images = () if camera else ("--no-camera",)
        successes: list[bool] = loop.record(out, spec, seeds, observer, simulation + images)
    finally:
        observer.close()
    return successes


def merged(found: dict[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Results with those of earlier runs, of other policies."""
    rows = [row for row in earlier.get("rows", []) if row["policy"] not in found["policies"]]
    policies = {name: note for name, note in earlier.get("policies", {}).items() if name not in found["policies"]}
    return found | {"rows": rows + found["rows"], "policies": policies | found["policies"]}


def main() -> None:
    """Record demonstrations, or evaluate policies."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("policy", nargs="*", help="[NAME=]POLICY, as `robocache run` takes it")
    parser.add_argument("--spec", type=Path, default=ROOT / "config/so101.yaml", help="Spec of the robot.")
    parser.add_argument("--camera", action="store_true", help="Render the camera.")
    parser.add_argument("--device", default="cpu", help="Device of the policies.")
    parser.add_argument("--note", action="append", default=[], metavar="NAME=TEXT", help="A line for the table.")
    parser.add_argument("--starts", type=int, default=50, help="Episodes of each cell of the table.")
    parser.add_argument("--first", type=int, help="Seed of the first start, or demonstration.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="Processes.")
    parser.add_argument("--way", action="append", default=[], help="Only the ways whose name has this text.")
    parser.add_argument("--demonstrations", type=Path, metavar="DIR", help="Record demonstrations, and end.")
    parser.add_argument("--episodes", type=int, default=560, help="Number of demonstrations.")
    parser.add_argument("--recoveries", type=float, default=0.0, help="Share of them that begin after a failure.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results", help="Folder of the results.")
    given = parser.parse_args()
    first = given.first
    if first is None:
        first = FIRST_START if given.demonstrations is None else FIRST_DEMONSTRATION
    if given.demonstrations is not None:
        out, spec, seeds = given.demonstrations.absolute(), given.spec.absolute(), range(first, first + given.episodes)
        record_demonstrations(out, seeds, given.jobs, camera=given.camera, spec=spec, recoveries=given.recoveries)
        return
    if not given.policy:
        parser.error("give a policy, or --demonstrations DIR")
    end_on_sigterm()
    policies = dict(named(text) for text in given.policy)
    notes = dict(text.partition("=")[::2] for text in given.note)
    chosen = [way for way in ways() if not given.way or any(text in way.name for text in given.way)]
    cells = [
        Cell(name, policy, given.device, given.spec, given.camera, way, latency_ms, given.starts, first)
        for name, policy in policies.items()
        for way in chosen
        for latency_ms in LATENCIES_MS
    ]
    found: dict[str, Any] = {"machine": machine(), "starts": given.starts, "rows": []}
    found |= {"policies": {name: notes.get(name, "") for name in policies}}
    given.out.mkdir(parents=True, exist_ok=True)
    results = given.out / "closed_loop.json"
    earlier = json.loads(results.read_text()) if results.exists() else {}
    for row in evaluate_all(cells, given.jobs):
        found["rows"].append(row)
        print(json.dumps(row), flush=True)
        both = merged(found, earlier)
        results.write_text(json.dumps(both, indent=1) + "\n")
        (given.out / "closed_loop.md").write_text(as_text(both))
    draw(merged(found, earlier), given.out / "closed_loop.png")


if __name__ == "__main__":
    main()
