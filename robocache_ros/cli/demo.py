"""`robocache demo`: replay a recording through a ROS 2 node, compare live with offline ticks, and export a dataset."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from rich.console import Group
from rich.live import Live as Screen
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from robocache_ros import ops
from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.cli.progress import shown_progress
from robocache_ros.cli.tables import console
from robocache_ros.decode import DecodeError, make_decoder
from robocache_ros.engine.frames import Frames, split_window
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.datasets import ExportResult
from robocache_ros.exporter.job import export
from robocache_ros.extras import need
from robocache_ros.recorder.run_log import media_digest
from robocache_ros.resources import resource
from robocache_ros.spec import FusionSpec, QosSpec, StreamSpec, load_spec
from robocache_ros.spec.layout import Layout
from robocache_ros.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from robocache_ros.client import FusedFrame


NODE = "fusion_node"
START_S = 30.0  # on a loaded machine, the import of torch alone takes seconds
QUIET_S = 0.5  # time without messages or ticks after which the run is finished


@dataclass
class Tick:
    """A published tick, reduced to the data required for a bitwise comparison."""

    row: bytes  # values by stream, then ages
    valid: list[int]  # by stream
    media: dict[str, bytes]  # digest of each image and voxel grid


@dataclass
class Live:
    """The output of the node so far."""

    spec: FusionSpec
    ticks: dict[int, Tick] = field(default_factory=dict)  # by tick_ns
    first_s: float = 0.0  # receive times of the first and the newest tick, on the monotonic clock
    newest_s: float = 0.0
    diagnostics: dict[str, dict[str, str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, frame: FusedFrame) -> None:
        """Add a frame that the client received."""
        tick = as_tick(frame, self.spec)
        with self.lock:
            self.newest_s = time.monotonic()
            self.first_s = self.first_s or self.newest_s
            self.ticks[frame.tick_ns] = tick

    @property
    def rate_hz(self) -> float:
        """Ticks per second since the first tick."""
        passed = self.newest_s - self.first_s
        return (len(self.ticks) - 1) / passed if passed > 0 else 0.0

    @property
    def missed(self) -> int:
        """Number of ticks between the first and the newest that were not received."""
        with self.lock:
            span = max(self.ticks) - min(self.ticks) if self.ticks else 0
            return round(span * self.spec.rate_hz / NS_PER_S) + bool(self.ticks) - len(self.ticks)

    def shares(self, stream: int) -> tuple[float, float, float]:
        """Return the shares of ticks at which a stream was invalid, aligned and held."""
        with self.lock:
            states = np.bincount([tick.valid[stream] for tick in self.ticks.values()] or [0], minlength=3)
        invalid, aligned, held = (states / max(1, states.sum())).tolist()
        return invalid, aligned, held


def as_tick(frame: FusedFrame, spec: FusionSpec) -> Tick:
    """Reduce the newest tick of a frame for a bitwise comparison, to use little memory."""
    names = [stream.name for stream in spec.streams]
    values = b"".join(frame.tensors[s.name][-1].numpy().tobytes() for s in spec.vectors)
    age_ns = np.array([int(frame.age_ns[name][-1]) for name in names], np.int64)
    ages = (age_ns / NS_PER_MS).astype(np.float32).tobytes()  # as in the message; shared memory contains nanoseconds
    valid = [int(frame.valid[name][-1]) for name in names]
    return Tick(values + ages, valid, {s.name: media_digest(frame.tensors[s.name]) for s in spec.media})


@contextmanager
def running(bag: Path, spec_file: Path, spec: FusionSpec, rate: float, log: Path) -> Iterator[tuple[Live, Player]]:
    """Run a fusion node, a player and a client; all stop at the end of the context."""
    # A separate domain: the demo and a robot on the same network do not receive each other's messages.
    os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    from robocache_ros.client import FusedSubscriber
    from robocache_ros.nodes import process
    from robocache_ros.nodes.fused_subscriber import DiagnosticsWatch

    process.prepare()  # this process acts as the policy: its work per tick must take less than a period
    live = Live(spec)
    node_arguments = {"spec": spec_file, "autostart": "true", "use_sim_time": "true", "device": "cpu"}
    parameters = [word for name, value in node_arguments.items() for word in ("-p", f"{name}:={value}")]
    with ExitStack() as stack:
        output = stack.enter_context(log.open("w", encoding="utf-8"))

        def start(module: str, *arguments: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", f"robocache_ros.nodes.{module}", *arguments]
            started = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            stack.callback(_end, started)
            return started

        node = start("fusion_node", "--ros-args", *parameters)
        client = FusedSubscriber(NODE, images=[s.name for s in spec.media], callback=live.add)
        watch = stack.enter_context(DiagnosticsWatch(NODE))
        stack.enter_context(client)
        live.diagnostics = watch.values
        client.wait_for_layout(START_S)
        player = start("bag_player", str(bag), "--clock", "--rate", str(rate), "--wait-for-subscribers", str(START_S))
        yield live, Player(live, node, player, log)


@dataclass
class Player:
    """The processes of the demo, and whether they have finished."""

    live: Live
    node: subprocess.Popen[bytes]
    player: subprocess.Popen[bytes]
    log: Path
    _ended_s: float = 0.0

    def done(self) -> bool:
        """Whether the replay has ended and no more ticks are expected; RoboCacheError if a process failed."""
        ended = self.player.poll() is not None
        for name, process in (("fusion node", self.node), ("player", self.player)):
            if process.poll() is not None and (process is self.node or process.returncode):
                raise RoboCacheError(
                    f"demo: the {name} ended with exit code {process.returncode}; read its log {self.log}"
                )
        if not ended:
            return False
        self._ended_s = self._ended_s or time.monotonic()
        # The clock stopped with the player, so only ticks that are already published can still arrive.
        return time.monotonic() - max(self.live.newest_s, self._ended_s) > QUIET_S


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Comparison:
    """Result of the comparison of live ticks with offline ticks."""

    expected: int  # number of offline ticks
    compared: int  # number of offline ticks that were also published live
    differing: tuple[int, ...]  # tick_ns of ticks that differ in any bit

    @property
    def same(self) -> bool:
        """Whether no tick differs. Up to 10 ticks may be missing at the ends, if /clock starts late or ends early."""
        return not self.differing and self.compared >= self.expected - 10


def compare(live: dict[int, Tick], frames: Frames, spec: FusionSpec) -> Comparison:
    """Compare published ticks with the frames of the recording, bit for bit."""
    expected = dict(ticks(frames, spec))
    both = [tick_ns for tick_ns in live if tick_ns in expected]
    differing = tuple(tick_ns for tick_ns in both if live[tick_ns] != expected[tick_ns])
    return Comparison(len(expected), len(both), differing)


def ticks(frames: Frames, spec: FusionSpec) -> Iterator[tuple[int, Tick]]:
    """Yield each frame as a time and the tick that a policy client would receive."""
    layout, rows = Layout(spec), frames.rows()
    for index, tick_ns in enumerate(frames.ticks_ns.tolist()):
        frame = split_window(layout, tick_ns, rows[index : index + 1])
        for stream in spec.media:
            tensor = frames.media[stream.name][index]
            if stream.kind == "image" and tensor.dtype == torch.uint8:
                tensor = ops.normalize_image(tensor)
            frame.tensors[stream.name] = tensor
        yield tick_ns, as_tick(frame, spec)


def recorded(bag: Path, spec: FusionSpec) -> Frames:
    """Return all frames of a recording with `deployed` visibility, as on the robot."""
    with Bag(bag) as opened:
        parts = list(BagRun(opened, spec, visibility="deployed", trim=False).frames())
    return Frames(
        np.concatenate([part.ticks_ns for part in parts]),
        torch.cat([part.fused for part in parts]),
        np.concatenate([part.valid for part in parts]),
        np.concatenate([part.age_ns for part in parts]),
        {stream.name: torch.cat([part.media[stream.name] for part in parts]) for stream in spec.media},
    )


WINDOW_S = 0.5
INK, FAINT, ALIGNED, HELD = "#1f2430", "#b8bec9", "#0b7a75", "#e07a1f"
PICTURES = 6


def draw(path: Path, bag: Bag, spec: FusionSpec, frames: Frames) -> None:
    """Draw a PNG of the half second around the widest gap of a joint stream, with its frames and voxels."""
    matplotlib = need("matplotlib", "export")
    matplotlib.use("Agg")
    plt = need("matplotlib.pyplot", "export")
    shown = next((s for s in spec.vectors if s.align == "linear"), spec.vectors[0])
    start_ns, stop_ns = _window(frames, spec, shown)
    samples = {s.name: _samples(bag, s, start_ns, stop_ns) for s in spec.streams}
    during = np.flatnonzero((frames.ticks_ns >= start_ns) & (frames.ticks_ns < stop_ns))
    style = {"font.size": 10, "axes.edgecolor": FAINT, "axes.spines.top": False, "axes.spines.right": False,
             "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}  # fmt: skip
    with plt.rc_context(style):
        figure = plt.figure(figsize=(12, 7.6), dpi=110, layout="constrained")
        grid = figure.add_gridspec(3, 1, height_ratios=[1.35, 1.5, 1.1])
        _raster(figure.add_subplot(grid[0]), spec, samples, frames.ticks_ns[during], start_ns)
        _curve(figure.add_subplot(grid[1]), spec, shown, samples[shown.name], frames, during, start_ns)
        _strip(figure, grid[2], spec, frames, during, start_ns)
        figure.savefig(path)
        plt.close(figure)


def _window(frames: Frames, spec: FusionSpec, shown: StreamSpec) -> tuple[int, int]:
    """Return half a second around the first tick past the start that is not aligned, or around the middle."""
    column = [s.name for s in spec.streams].index(shown.name)
    broken = np.flatnonzero(frames.valid[:, column] != 1)
    broken = broken[(broken > 25) & (broken < len(frames) - 25)]
    middle = int(frames.ticks_ns[broken[0] if len(broken) else len(frames) // 2])
    start_ns = middle - round(WINDOW_S * 0.35 * NS_PER_S)
    return start_ns, start_ns + round(WINDOW_S * NS_PER_S)


def _samples(bag: Bag, stream: StreamSpec, start_ns: int, stop_ns: int) -> list[tuple[int, Any]]:
    """Return (stamp, value) of the recorded samples with stamps within the window."""
    decoder = make_decoder(stream, bag.definitions)
    found = []
    for message in bag.messages([stream.topic], start_ns, stop_ns + NS_PER_S):
        try:
            sample = decoder.decode_cdr(message.data)
        except DecodeError:
            continue
        stamp_ns = message.log_ns if stream.stamp == "receive" or sample.stamp_ns is None else sample.stamp_ns
        if start_ns <= stamp_ns < stop_ns:
            found.append((stamp_ns, sample.value))
    return found


def _ms(times_ns: Any, start_ns: int) -> NDArray[np.float64]:
    return (np.asarray(times_ns, np.int64) - start_ns) / 1e6


def _raster(axes: Any, spec: FusionSpec, samples: dict[str, Any], ticks_ns: Any, start_ns: int) -> None:
    names = list(samples)
    for row, name in enumerate(names):
        axes.plot(
            _ms([s for s, _ in samples[name]], start_ns), [row] * len(samples[name]), "|", color=INK, ms=9, mew=0.9
        )
    for tick in _ms(ticks_ns, start_ns):
        axes.axvline(tick, color=ALIGNED, lw=0.7, alpha=0.45)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, WINDOW_S * 1e3)
    axes.tick_params(labelbottom=False, length=0)
    axes.set_title(f"messages of the topics (|), and the {spec.rate_hz} Hz ticks", loc="left", weight="bold")


def _curve(
    axes: Any, spec: FusionSpec, shown: StreamSpec, samples: Any, frames: Frames, during: Any, start_ns: int
) -> None:
    column = Layout(spec).slots[shown.name].start
    place = [s.name for s in spec.streams].index(shown.name)
    if samples:
        axes.plot(
            _ms([s for s, _ in samples], start_ns), [v[0] for _, v in samples], ".", color=FAINT, ms=4, label="samples"
        )
    values, valid = frames.fused[during, column].numpy(), frames.valid[during, place]
    times = _ms(frames.ticks_ns[during], start_ns)
    for state, color, label in ((1, ALIGNED, "aligned"), (2, HELD, "held past the next sample")):
        axes.plot(times[valid == state], values[valid == state], "o", color=color, ms=6, label=label)
    for tick in times[valid == 0]:
        axes.axvspan(tick - 10, tick + 10, color=HELD, alpha=0.12, lw=0)
    axes.plot([], [], "s", color=HELD, alpha=0.2, ms=9, label="invalid: zero, marked by the mask")
    axes.set_xlim(0, WINDOW_S * 1e3)
    axes.set_xlabel("ms")
    axes.set_ylabel(f"{shown.name}.{shown.components[0]}" + (f" [{shown.unit}]" if shown.unit else ""))
    axes.legend(loc="best", frameon=False, ncols=4)
    axes.set_title("what the node publishes", loc="left", weight="bold")


def _strip(figure: Any, place: Any, spec: FusionSpec, frames: Frames, during: Any, start_ns: int) -> None:
    images = [s.name for s in spec.media if s.kind == "image" and frames.media.get(s.name) is not None]
    clouds = [s.name for s in spec.media if s.kind == "cloud" and frames.media.get(s.name) is not None]
    if not images and not clouds:
        return
    shown = during[np.linspace(0, len(during) - 1, PICTURES).astype(int)]
    cells = place.subgridspec(1, PICTURES + bool(clouds), wspace=0.03)
    for cell, tick in enumerate(shown if images else ()):
        axes = figure.add_subplot(cells[cell])
        image = frames.media[images[0]][tick].numpy()
        axes.imshow(image.transpose(1, 2, 0) if image.shape[0] == 3 else image[0], cmap="gray")
        axes.set_title(f"{_ms([frames.ticks_ns[tick]], start_ns)[0]:.0f} ms", fontsize=9)
        axes.set_axis_off()
    if clouds:
        axes = figure.add_subplot(cells[PICTURES])
        grid = frames.media[clouds[0]][shown[0]].float()
        axes.imshow(grid.reshape(-1, *grid.shape[-3:]).sum(dim=(0, 3)).T.numpy(), cmap="viridis")
        axes.set_title(f"{clouds[0]}, along z", fontsize=9)
        axes.set_axis_off()


REFRESH_HZ = 5
RATE_TOLERANCE = 0.02  # relative tolerance of the mean rate over the whole run
VALID_SHARE = 0.9  # minimum share of valid ticks, for every stream
MISSED_SHARE = 0.01  # a client gets the newest frame: a pause of the computer for a period makes it miss one


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
        if not console.is_terminal:
            console.line()  # rich ends the table with one on a terminal only
        return live


def checks_of(live: Live, spec: FusionSpec, rate: float, comparison: Comparison, result: ExportResult) -> list[Check]:
    """Return the checks of the demo, each with the measured value that decides it."""
    wanted = spec.rate_hz * rate
    least = {s.name: 1 - live.shares(i)[0] for i, s in enumerate(spec.streams)}
    worst = min(least, key=lambda name: least[name])
    even = abs(live.rate_hz - wanted) <= RATE_TOLERANCE * wanted
    return [
        Check(
            even and not misses_many(live), f"{len(live.ticks)} ticks at {live.rate_hz:.2f} Hz, {live.missed} missed"
        ),
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


def misses_many(live: Live) -> bool:
    """Whether the client missed more ticks than a short pause of the computer explains."""
    return live.missed > MISSED_SHARE * len(live.ticks)


def advice(live: Live, rate: float) -> list[str]:
    """Return what to do if many ticks are missing. Those that were published are right all the same."""
    if not misses_many(live):
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
