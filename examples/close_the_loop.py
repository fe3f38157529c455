"""The whole loop on a simulated robot, over real ROS 2: record demonstrations, export them, run a policy.

    make loop
    python examples/close_the_loop.py --out out/loop --episodes 20 --starts 10

An expert carries a block to a goal with a simulated SO-101 arm, and the episode recorder records it. `robocache export`
makes a dataset of the recordings. Then a small policy, which was trained on 1,131 such episodes, runs on starts that it
has not seen: once as fast as it can, and once with 150 ms from an observation to its plan. Both runs are recorded, and
recomputed to the bit. Writes `report.md`, `plans.png` (what was planned, and what was executed), and `robot.mp4` where
images can be rendered.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from robocache_ros.engine import tick_grid
from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.policy.replay import Verification, verify
from robocache_ros.programs import HelpFormatter, run
from robocache_ros.recorder.run_log import RunReader

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "examples" / "so101_policy.pt"
POLICY = f"{ROOT / 'examples' / 'delayed_policy.py'}:policy"
LATENCIES_MS = (0, 150)
FIRST_START = 0  # seeds of the starts of the policy; demonstrations have those from FIRST_DEMONSTRATION on
FIRST_DEMONSTRATION = 1000
LONGEST_NS = 12_000_000_000  # of an episode
HELD_NS = 200_000_000  # a command is held for less
STAY_NS = 2_000_000_000  # that a demonstration goes on after its success: the arm goes up, and stays for the horizon
WAIT_S = 120.0  # for processes to start, on a busy machine
VIDEO_HZ = 25
VIDEO_SIZE = (240, 320)


@dataclass
class Attempt:
    """An episode of the policy.

    Attributes:
        success: whether the block rests at the goal.
        begin_ns, end_ns: in the time of the simulation.
        executed: (ticks, columns) rows of `~/executed`, with their ticks in ns as the first column.
        scene: joint positions, block and goal, (16,) at each pose of the block.
    """

    success: bool = False
    begin_ns: int = 0
    end_ns: int = 0
    executed: list[NDArray[np.float64]] = field(default_factory=list)
    scene: list[NDArray[np.float64]] = field(default_factory=list)


class Observer:
    """A node that hears the simulated robot and the policy runner, and calls their services.

    Args:
        scenes: keep the scenes of an attempt, for a film; they need all joint states.
    """

    def __init__(self, *, scenes: bool = True) -> None:
        import rclpy
        from geometry_msgs.msg import PoseStamped
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.signals import SignalHandlerOptions
        from sensor_msgs.msg import JointState
        from std_msgs.msg import Bool, Float32MultiArray

        from robocache_ros.nodes import frame_messages, middleware

        self._rclpy = rclpy
        rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
        self._node = rclpy.create_node("close_the_loop")
        self.success = False
        self.success_ns = 0  # since when
        self.attempt = Attempt()
        self._joints: NDArray[np.float64] | None = None
        self._goal = np.zeros(3)
        self.now_ns = 0

        def on_joints(message: Any) -> None:
            self._joints = np.array(message.position)

        def on_block(message: Any) -> None:
            self.now_ns = frame_messages.stamp_ns(message.header)
            at, turned = message.pose.position, message.pose.orientation
            if self._joints is not None:
                block = [at.x, at.y, at.z, turned.w, turned.x, turned.y, turned.z]
                self.attempt.scene.append(np.concatenate([self._joints, block, self._goal]))

        def on_goal(message: Any) -> None:
            at = message.pose.position
            self._goal = np.array([at.x, at.y, at.z])

        def on_success(message: Any) -> None:
            self.success, self.success_ns = message.data, self.now_ns

        def on_executed(message: Any) -> None:
            tick_ns, row = frame_messages.read_fused(message)
            self.attempt.executed.append(np.array([tick_ns, *row.flatten().tolist()]))

        reliable = middleware.reliable(1000)
        subscribe = self._node.create_subscription
        if scenes:
            subscribe(JointState, "/so101/joint_states", on_joints, reliable)
        subscribe(PoseStamped, "/so101/block_pose", on_block, reliable)
        subscribe(PoseStamped, "/so101/goal_pose", on_goal, reliable)
        subscribe(Bool, "/so101/success", on_success, middleware.latched())
        subscribe(Float32MultiArray, "/policy_runner/executed", on_executed, reliable)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._executor.spin, daemon=True)
        self._thread.start()

    def call(self, name: str, value: bool | None = None) -> tuple[bool, str]:
        """Call a service of Trigger, or of SetBool with a value; returns its success and message."""
        from std_srvs.srv import SetBool, Trigger

        kind: Any = Trigger if value is None else SetBool
        client: Any = self._node.create_client(kind, name)
        until(client.service_is_ready, f"the service {name}")
        future = client.call_async(kind.Request() if value is None else kind.Request(data=value))
        until(future.done, f"an answer of {name}")
        answer: Any = future.result()
        self._node.destroy_client(client)
        return bool(answer.success), str(answer.message)

    def begin(self) -> None:
        """Begin the next episode of the simulation."""
        self.call("/simulator/reset")
        until(lambda: not self.success, "the episode to begin")
        self.attempt = Attempt(begin_ns=self.now_ns)

    def finish(self, stay_ns: int = 0) -> Attempt:
        """Wait until the block has rested at the goal for some time, or the time is over."""
        attempt = self.attempt

        def is_over() -> bool:
            stays = self.success and self.now_ns - self.success_ns >= stay_ns
            return stays or self.now_ns - attempt.begin_ns > LONGEST_NS + stay_ns

        until(is_over, "the end of the episode")
        attempt.success, attempt.end_ns = self.success, self.now_ns
        return attempt

    def close(self) -> None:
        """End the node."""
        self._executor.shutdown()
        self._thread.join()
        self._node.destroy_node()
        self._rclpy.try_shutdown()


RUNNING: dict[Path, subprocess.Popen[bytes]] = {}  # by their logs


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition; RoboCacheError if it does not come true, or a process ends."""
    end = time.monotonic() + WAIT_S
    while not condition():
        for log, started in RUNNING.items():
            if started.poll() is not None:
                raise RoboCacheError(f"a process ended with exit code {started.returncode}; read its log {log}")
        if time.monotonic() > end:
            raise RoboCacheError(f"waited {WAIT_S:g} s for {what}; read the logs in the folder of results")
        time.sleep(0.01)


@contextmanager
def process(log: Path, *arguments: object, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `robocache`, and end it with SIGINT."""
    command = [sys.executable, "-m", "robocache_ros", *map(str, arguments)]
    with log.open("wb") as output:
        started = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=os.environ | environment
        )
        RUNNING[log] = started
        try:
            yield started
        finally:
            del RUNNING[log]
            started.send_signal(signal.SIGINT)
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
            if started.stdin:
                started.stdin.close()


def write_spec(path: Path) -> None:
    """Write the spec of the simulated robot without its camera, and with the output of the policy."""
    spec = yaml.safe_load((ROOT / "config" / "so101.yaml").read_text(encoding="utf-8"))
    del spec["streams"]["front"]
    spec["delay_ms"] = 0
    spec["run"] = {"stop": "none", "outputs": {"action": {"discrete": ["gripper"]}}}
    path.write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")


def record(
    out: Path, spec: Path, seeds: range, observer: Observer, simulation: tuple[object, ...] = ("--no-camera",)
) -> list[bool]:
    """Record episodes of the expert; returns their success. `simulation`: options of `robocache sim`.

    An episode is recorded before the expert acts, so that the dataset has each of its commands from the first one on.
    """
    found = []

    def started() -> bool:
        if observer.call("/episode_recorder/start")[0]:
            return True
        for acts in (True, False):  # the recorder refuses to start until it has heard commands
            observer.call("/simulator/expert", acts)
            time.sleep(0.2)
        return False

    with ExitStack() as stack:
        options = ("--rate", 2, "--seed", seeds.start, *simulation)
        stack.enter_context(process(out / "sim.log", "sim", *options))
        recorder = ("record", "--spec", spec, "--out", out / "recordings", "--sim-time", "--task", "Carry the block")
        stack.enter_context(process(out / "record.log", *recorder))
        until(lambda: observer.now_ns, "the simulation")
        for number in range(len(seeds)):
            stopped_ns = observer.now_ns
            until(lambda: observer.now_ns > stopped_ns + HELD_NS, "the last command to be out of date")  # noqa: B023
            until(started, "the recorder to start")
            observer.begin()
            observer.call("/simulator/expert", True)
            observer.attempt.begin_ns = observer.now_ns  # not the time that a busy computer took for the call
            found.append(observer.finish(STAY_NS).success)
            observer.call("/episode_recorder/end", found[-1])
            observer.call("/simulator/expert", False)
            word = "success" if found[-1] else "failure"
            print(f"recorded episode {number + 1} of {len(seeds)}: {word}", flush=True)
    return found


def drive(out: Path, spec: Path, starts: int, latency_ms: int, observer: Observer) -> list[Attempt]:
    """Run the policy on the robot; returns its attempts."""
    found = []
    environment = {"CHECKPOINT": str(CHECKPOINT), "LATENCY_MS": str(latency_ms)}
    observer.now_ns, observer.attempt = 0, Attempt()  # not of the run before, whose policy commanded already
    with ExitStack() as stack:
        simulation = ("sim", "--no-camera", "--lockstep", "--seed", FIRST_START)
        stack.enter_context(process(out / f"sim_{latency_ms}.log", *simulation))
        policy = ("run", POLICY, "--spec", spec, "--sim-time", "--record", out / f"run_{latency_ms}.mcap")
        stack.enter_context(process(out / f"run_{latency_ms}.log", *policy, **environment))
        until(lambda: observer.now_ns, "the simulation")
        until(lambda: observer.attempt.executed and np.isfinite(observer.attempt.executed[-1][1]), "the first command")
        for number in range(starts):
            observer.call("/policy_runner/stop")  # nothing of the last episode moves the robot in this one
            observer.begin()
            observer.call("/policy_runner/arm")
            found.append(observer.finish())
            word = "success" if found[-1].success else "failure"
            print(f"latency {latency_ms} ms, start {number + 1} of {starts}: {word}", flush=True)
    return found


def read_plans(run: Path) -> list[tuple[int, NDArray[np.float32]]]:
    """Read the plans of a run: the observed tick in ns, and the actions."""
    reader = RunReader(run)
    plans = [event for event in reader.events() if event.name == "reply" and event.arrays]
    rate_hz = reader.spec.rate_hz
    return [(tick_grid.tick_ns(plan.facts["tick"], rate_hz), plan.arrays["actions"]) for plan in plans]


def replay(run: Path) -> Verification:
    """Recompute a run with its policy, which now answers at once."""
    os.environ |= {"CHECKPOINT": str(CHECKPOINT), "LATENCY_MS": "0"}
    return verify(run, POLICY)


def largest_seam(attempts: list[Attempt], columns: int) -> float:
    """The largest step of a joint where one chunk follows another, in rad; not of the gripper, which is not blended."""
    pairs = [pair for attempt in attempts for pair in pairwise(attempt.executed) if pair[1][1 + columns + 2] > 0]
    steps = [float(np.abs(row[1:columns] - last[1:columns]).max()) for last, row in pairs]
    return max([step for step in steps if np.isfinite(step)], default=0.0)


def draw(path: Path, attempts: dict[int, Attempt], plans: dict[int, list[tuple[int, NDArray[np.float32]]]]) -> None:
    """Draw the executed commands of a joint over the plans, for each latency."""
    matplotlib = need("matplotlib", "dev")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    joint, tick_s = 1, 0.02
    figure, panels = pyplot.subplots(len(attempts), 1, figsize=(9, 3 * len(attempts)), sharex=True, squeeze=False)
    for (latency_ms, attempt), panel in zip(attempts.items(), panels[:, 0], strict=True):
        for tick_ns, actions in plans[latency_ms]:
            if attempt.begin_ns <= tick_ns <= attempt.end_ns:
                begin_s = (tick_ns - attempt.begin_ns) / 1e9
                times = begin_s + np.arange(len(actions)) * tick_s
                panel.plot(times, actions[:, joint], color="tab:blue", alpha=0.5, linewidth=0.9)
        rows = np.array([row[: 2 + joint] for row in attempt.executed])
        panel.plot((rows[:, 0] - attempt.begin_ns) / 1e9, rows[:, 1 + joint], color="black", linewidth=1.5)
        panel.set_title(f"{latency_ms} ms from an observation to its plan", fontsize=10)
        panel.set_ylabel("shoulder_lift, rad")
    panels[-1, 0].set_xlabel("s; black: executed, blue: planned")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def film(path: Path, attempts: list[Attempt]) -> bool:
    """Render the attempts; False if no image can be rendered here."""
    from robocache_ros.sim.so101 import So101

    av = need("av", "export")
    robot = So101(VIDEO_SIZE)
    mujoco = need("mujoco", "sim")
    try:
        robot.image()
    except RoboCacheError as error:
        print(f"no video: {error}")
        return False
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=VIDEO_HZ)
        stream.height, stream.width = VIDEO_SIZE
        stream.pix_fmt = "yuv420p"
        for attempt in attempts:
            for scene in attempt.scene[:: 50 // VIDEO_HZ]:
                robot.data.qpos[:6] = scene[:6]
                robot.data.joint("block").qpos[:] = scene[6:13]
                robot.goal = scene[13:]
                mujoco.mj_forward(robot.model, robot.data)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(robot.image(), format="rgb24")))
        container.mux(stream.encode())
    robot.close()
    return True


def main() -> None:
    """Close the loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/loop"), help="Folder of the results.")
    parser.add_argument("--episodes", type=int, default=20, help="Demonstrations to record.")
    parser.add_argument("--starts", type=int, default=10, help="Episodes of the policy at each latency.")
    given = parser.parse_args()
    for name in ("episodes", "starts"):
        if not 1 <= getattr(given, name) <= 1000:
            parser.error(f"{name}: {getattr(given, name)} is not in 1..1000")
    out: Path = given.out.absolute()
    if out.exists() and not (out / "spec.yaml").is_file() and any(out.iterdir()):
        parser.error(f"{out} has other files; give another folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    # A domain of its own: it and a robot on the same network do not receive each other's messages.
    os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    spec = out / "spec.yaml"
    write_spec(spec)
    began = time.monotonic()
    observer = Observer()
    try:
        seeds = range(FIRST_DEMONSTRATION, FIRST_DEMONSTRATION + given.episodes)
        recorded = record(out, spec, seeds, observer)
        export = ("export", out / "recordings", "--spec", spec, "--out", out / "dataset", "--format", "lerobot")
        subprocess.run([sys.executable, "-m", "robocache_ros", *map(str, export)], check=True)
        attempts = {latency: drive(out, spec, given.starts, latency, observer) for latency in LATENCIES_MS}
    finally:
        observer.close()
    columns = len(yaml.safe_load(spec.read_text())["streams"]["joint_position"]["names"])
    runs = {latency: out / f"run_{latency}.mcap" for latency in LATENCIES_MS}
    plans = {latency: read_plans(run) for latency, run in runs.items()}
    # The first start that succeeds at each latency; the first one if there is none.
    drawn = next((n for n in range(given.starts) if all(found[n].success for found in attempts.values())), 0)
    draw(out / "plans.png", {latency: found[drawn] for latency, found in attempts.items()}, plans)
    replays = {run.name: replay(run) for run in runs.values()}
    is_filmed = film(out / "robot.mp4", [attempt for found in attempts.values() for attempt in found[:2]])
    rows = [
        f"| {latency} ms | {sum(each.success for each in found)} of {len(found)} | {largest_seam(found, columns):.3f} |"
        for latency, found in attempts.items()
    ]
    text = [
        "# The loop, closed on a simulated robot",
        "",
        f"{sum(recorded)} of {len(recorded)} demonstrations of the expert were a success; dataset/ has them.",
        "",
        "| from an observation to its plan | successes | largest step of a joint at a seam, rad |",
        "|---|---|---|",
        *rows,
        "",
        "The runs, recomputed with their policy to the bit:",
        "",
        *(f"- {name}: {found}" for name, found in replays.items()),
        *(f"- {name}: {found.first}" for name, found in replays.items() if found.first),
        "",
        f"{time.monotonic() - began:.0f} s. [Planned and executed](plans.png)"
        + (", [video](robot.mp4)." if is_filmed else "; no video, as no image can be rendered here."),
    ]
    (out / "report.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    (out / "report.json").write_text(
        json.dumps({str(latency): [each.success for each in found] for latency, found in attempts.items()}) + "\n"
    )
    print("\n".join(text))


if __name__ == "__main__":
    sys.exit(run("close_the_loop", main))
