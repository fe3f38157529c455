"""The options of `robocache sim`, and the demonstrations that it writes without ROS."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.programs import HelpFormatter
from robocache_ros.sim.simulation import IMAGES, OPERATOR, TYPES, SimOptions, Simulation, episode
from robocache_ros.sim.so101 import MAX_SEED

MAX_EPISODES = 100_000
MAX_RATE = 1000.0


@dataclass(frozen=True)
class SimArguments:
    """How the simulated robot runs.

    Attributes:
        options: what is simulated.
        seed: of the first episode; each further one has the next seed.
        episodes: to end after; 0: one that does not end.
        rate: seconds of the simulation per second; 0: as fast as its subscribers acknowledge messages.
        expert: whether the expert acts.
        operator: whether the expert is the operator during takeovers of a policy runner.
        lockstep: each tick waits for its command, once commands come, so that a slow policy is not late. The first
            episode begins with the first command.
        out: folder of demonstrations to write, without ROS.

    Raises:
        RoboCacheError: a number is out of range.
    """

    options: SimOptions = field(default_factory=SimOptions)
    seed: int = 0
    episodes: int = 0
    rate: float = 1.0
    expert: bool = False
    operator: bool = False
    lockstep: bool = False
    out: Path | None = None

    def __post_init__(self) -> None:
        for name, value, most in (
            ("seed", self.seed, MAX_SEED - MAX_EPISODES),
            ("episodes", self.episodes, MAX_EPISODES),
            ("rate", self.rate, MAX_RATE),
        ):
            if not 0 <= value <= most:  # also refuses NaN
                raise RoboCacheError(f"{name}: {value!r} is not in 0..{most:g}; give another number")
        if self.out is not None and not self.episodes:
            raise RoboCacheError("out: the number of episodes is missing; give it with --episodes")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    default = SimArguments()
    made = argparse.ArgumentParser(
        prog="robocache sim",
        description="Simulate an SO-101 arm that carries a block to a goal, as a ROS 2 node that owns /clock.",
        formatter_class=HelpFormatter,
    )
    made.add_argument("--seed", type=int, default=default.seed, help="Seed of the first episode; others count up.")
    made.add_argument("--episodes", type=int, default=default.episodes, help="Episodes to end after; 0: no end.")
    made.add_argument(
        "--rate", type=float, default=default.rate, help="Speed; 1.0 is real time, 0 as fast as subscribers follow."
    )
    made.add_argument("--expert", action="store_true", help="Let the scripted expert act.")
    made.add_argument(
        "--operator", action="store_true", help=f"During a takeover, let the expert send its commands on {OPERATOR}."
    )
    made.add_argument(
        "--lockstep", action="store_true", help="Begin with the first command, and wait for that of each tick."
    )
    made.add_argument("--no-camera", action="store_true", help="Render no images.")
    made.add_argument(
        "--disturbance",
        type=float,
        default=default.options.disturbance,
        metavar="RAD",
        help="Noise on the executed commands of the expert; the published ones have none.",
    )
    made.add_argument(
        "--recoveries",
        type=float,
        default=default.options.recoveries,
        metavar="SHARE",
        help="Share of the episodes that begin after a failed grasp or placement.",
    )
    made.add_argument("--out", type=Path, metavar="DIR", help="Write the expert's episodes as recordings, without ROS.")
    return made


def parse(arguments: Sequence[str]) -> SimArguments:
    """The arguments of a command line; an invalid one ends the process with exit code 2."""
    given = parser().parse_args(arguments)
    try:
        return SimArguments(
            SimOptions(camera=not given.no_camera, disturbance=given.disturbance, recoveries=given.recoveries),
            given.seed,
            given.episodes,
            given.rate,
            given.expert,
            given.operator,
            given.lockstep,
            given.out,
        )
    except RoboCacheError as error:
        parser().error(str(error))


def write_demonstrations(
    out: Path, given: SimArguments, report: Callable[[str], None] = lambda line: None
) -> list[Path]:
    """Write the expert's successful episodes as recordings `episode_SEED`, and return their paths.

    Recordings that exist are kept, so that a stopped run goes on. What a spec calls `task`, success and failure is not
    in them: a failed episode is left out, and reported.
    """
    simulation = Simulation(given.options)
    types = {topic: kind for topic, kind in TYPES.items() if given.options.camera or topic != IMAGES}
    out.mkdir(parents=True, exist_ok=True)
    written, failed = [], 0
    try:
        for seed in range(given.seed, given.seed + given.episodes):
            path = out / f"episode_{seed:06d}"
            if not path.exists():
                part = path.with_suffix(".part")
                shutil.rmtree(part, ignore_errors=True)
                write_bag(part, types, episode(simulation, seed))
                if not simulation.robot.is_success:
                    shutil.rmtree(part)
                    failed += 1
                    report(f"seed {seed}: failure, left out")
                    continue
                part.rename(path)
            written.append(path)
    finally:
        simulation.close()
    report(f"{printable(out, 80)}: {len(written)} episodes, {failed} failed")
    return written
