"""What an export with Ray costs beside its conversions, and how it scales with the number of workers."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import recordings as camera_recording
from benchmarks.report import argument_parser, machine, write_results
from robocache_ros.exporter.executors import RayTasks, Resources, Task, ray_session
from robocache_ros.exporter.piece_store import PieceStore
from robocache_ros.exporter.pieces import Outcome, Plan, make_pieces
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Ended, Event, Merging, Progress, Started
from robocache_ros.extras import need
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export

# A model of an export with Ray: the time of the conversions, and of what does not get faster with more workers.


LINEAR = 0.9  # share of the speed of N single workers from which N workers scale linearly


@dataclass(frozen=True)
class Costs:
    """What an export costs; times in s.

    Attributes:
        task_s: conversion of a recording by one worker, without requests to a bucket.
        core_s: of all cores together for a recording: its CPU time by the number of cores; 0: a worker has its own.
        driver_s: of the driver for each recording: submit its task and take its result.
        merge_s: of the merge for each recording, which one machine does.
        start_s: until workers have started, once.
        read_bytes, written_bytes: of a recording, and of its pieces.
        requests: to the bucket, of a recording, one after the other.
        latency_s: of a request.
        worker_bytes_s, bucket_bytes_s: bandwidth of a worker, and of the bucket to all of them.
    """

    task_s: float
    driver_s: float
    merge_s: float
    start_s: float = 0.0
    core_s: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    requests: float = 0.0
    latency_s: float = 0.0
    worker_bytes_s: float = math.inf
    bucket_bytes_s: float = math.inf

    @property
    def moved_bytes(self) -> float:
        """Bytes that are moved for a recording."""
        return self.read_bytes + self.written_bytes

    @property
    def recording_s(self) -> float:
        """Time of a worker for a recording."""
        return self.task_s + self.requests * self.latency_s + self.moved_bytes / self.worker_bytes_s

    def stages(self, recordings: int, workers: int) -> Mapping[str, float]:
        """Return the time that each stage needs at least, in s; those of the conversion overlap."""
        return {
            "conversions": math.ceil(recordings / workers) * self.recording_s,
            "the cores": recordings * self.core_s,
            "the driver": recordings * self.driver_s,
            "the bucket": recordings * self.moved_bytes / self.bucket_bytes_s,
            "the merge": recordings * self.merge_s,
            "the start": self.start_s,
        }

    def seconds(self, recordings: int, workers: int) -> float:
        """Return the time of an export in s."""
        stages = dict(self.stages(recordings, workers))
        after = stages.pop("the merge") + stages.pop("the start")
        return max(stages.values()) + after


def speedups(costs: Costs, recordings: int, workers: Sequence[int]) -> list[float]:
    """Return how many times as fast as one worker each number of workers is."""
    return [costs.seconds(recordings, 1) / costs.seconds(recordings, count) for count in workers]


def end_of_linear(costs: Costs, recordings: int, most: int) -> tuple[int, str]:
    """Return the largest number of workers that scales linearly, up to `most`, and what limits more of them."""
    last = 1
    for count in range(1, most + 1):
        if speedups(costs, recordings, [count])[0] >= LINEAR * count:
            last = count
    stages = costs.stages(recordings, last + 1)
    even = recordings / (last + 1) * costs.recording_s
    lost = {name: stages[name] for name in ("the merge", "the start")}
    lost |= {name: stages[name] - even for name in ("the cores", "the driver", "the bucket")}
    lost["recordings that do not divide evenly"] = stages["conversions"] - even
    return last, max(lost, key=lost.__getitem__)


# Measures exports with Ray on this machine: the driver, conversions by 1, 2 and 4 workers, and the merge.


MEETING_S = 120.0  # at most, until all workers have started
SLOTS = 4  # of the Ray that is started, whatever this machine has


@dataclass(frozen=True)
class Nothing:
    """Stands in for the work of an export: it is sent to the workers, and makes nothing."""

    work: Callable[..., Any]

    def __call__(self, task: Any, _tell: Progress) -> list[Outcome]:
        """Return the outcome that a conversion has."""
        return [Outcome(task.recording, Path("pieces") / ("0" * 64)) for _ in task.datasets]


@dataclass(frozen=True)
class Timed:
    """The work of an export, with its time."""

    work: Callable[..., Any]

    def __call__(self, task: Any, tell: Progress) -> tuple[Any, float, float]:
        """Return the result, and the seconds and CPU seconds that it took."""
        started, cpu = time.perf_counter(), time.process_time()
        result = self.work(task, tell)
        return result, time.perf_counter() - started, time.process_time() - cpu


@dataclass(frozen=True)
class Meeting:
    """Work that waits until as many processes do it as there are slots.

    Attributes:
        folder: empty; each process makes a file in it.
    """

    folder: Path

    def __call__(self, _task: Task, _tell: Progress) -> None:
        """Wait for the other processes."""
        (self.folder / str(os.getpid())).touch()
        until = time.monotonic() + MEETING_S
        while len(list(self.folder.iterdir())) < SLOTS and time.monotonic() < until:
            time.sleep(0.01)


class RayOfNothing(RayTasks):
    """Ray with tasks that make nothing."""

    def map(self, work: Any, tasks: Any, progress: Any) -> Any:
        """Run tasks."""
        return super().map(Nothing(work), tasks, progress)


class TimedRay(RayTasks):
    """Ray with tasks of a number of workers, whose times are kept.

    Attributes:
        times: name, seconds and CPU seconds of each task.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(needs=lambda _needs: Resources(SLOTS / workers))
        self.times: list[tuple[str, float, float]] = []

    def map(self, work: Any, tasks: Any, progress: Any) -> Any:
        """Run tasks."""
        for task, result in super().map(Timed(work), tasks, progress):
            if isinstance(result, tuple):
                self.times.append((task.name, *result[1:]))
                result = result[0]
            yield task, result


@contextmanager
def fleet() -> Iterator[None]:
    """Start a Ray on this machine, with workers that have imported this package."""
    with ray_session(None, slots=SLOTS):
        with TemporaryDirectory() as folder, RayTasks() as executor:
            tasks = [Task(f"start {number}", 0, Resources()) for number in range(SLOTS)]
            list(executor.map(Meeting(Path(folder)), tasks, lambda _event: None))
        yield


def driver_cost(count: int) -> dict[str, float]:
    """Return what recordings of nothing cost the driver: seconds, and CPU seconds of its process, for each."""
    spec = load_spec(camera_recording.spec(1))
    recordings = tuple(PlannedRecording(Path(f"recordings/lift_{number:06}")) for number in range(count))
    events: list[Event] = []
    with TemporaryDirectory() as folder, RayOfNothing(needs=lambda _needs: Resources()) as executor:
        started, cpu = time.perf_counter(), time.process_time()
        plans = {"": Plan(recordings, spec, DatasetOptions(), {})}
        made = make_pieces(plans, PieceStore(Path(folder)), executor, events.append)
        found = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
    assert len(made[""]) == count
    return {name: value / count for name, value in found.items()}


def recordings_in(folder: Path, count: int, seconds: float, cameras: int) -> list[Path]:
    """Write a recording with an image of each camera and joints, and link it under other names."""
    first = camera_recording.write(folder / "lift_000", seconds, cameras, "storage")
    others = [folder / f"lift_{number:03}" for number in range(1, count)]
    return [first, *(Path(shutil.copytree(first, other, copy_function=_link)) for other in others)]


def conversions(bags: Sequence[Path], cameras: int, workers: int, out: Path) -> dict[str, float]:
    """Export recordings; return the seconds of all conversions, of the merge, and of one conversion."""
    at: dict[type[Event], float] = {}

    def progress(event: Event) -> None:
        at[type(event)] = time.perf_counter()

    executor = TimedRay(workers)
    export(bags, load_spec(camera_recording.spec(cameras)), out, executor=executor, progress=progress)
    names = {bag.name for bag in bags}
    tasks = [times for times in executor.times if times[0] in names]
    shutil.rmtree(out)
    return {
        "convert_s": at[Merging] - at[Started],
        "merge_s": at[Ended] - at[Merging],
        "task_s": statistics.median(seconds for _, seconds, _ in tasks),
        "task_cpu_s": statistics.median(seconds for _, _, seconds in tasks),
    }


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


# The results of the fleet benchmark as Markdown and as a plot.


def report(result: Mapping[str, Any]) -> str:
    """Return the results as Markdown."""
    on, driver = result["machine"], result["driver"]
    rows = [
        f"| {workers} | {found['convert_s']:.1f} | {found['model_s']:.1f} "
        f"| {100 * (found['model_s'] / found['convert_s'] - 1):+.0f} % | {found['merge_s']:.1f} |"
        for workers, found in result["measured"].items()
    ]
    one = next(iter(result["measured"].values()))
    return "\n".join(
        [
            "# Exports with Ray: cost of the driver, and scaling",
            "",
            f"`python -m benchmarks.fleet` on {on['cores']} cores of an {on['cpu']}, Python {on['python']}, "
            f"{on['date']}, load average {on['load_before']} before.",
            "",
            f"**Driver:** {1e3 * driver['seconds']:.2f} ms, of which {1e3 * driver['cpu_seconds']:.2f} ms CPU of its "
            f"process, for each of {driver['episodes']:,} episodes of nothing: plan, submit, result and outcome. "
            "The workers run on the same cores.",
            "",
            f"**Conversions** of {result['recordings']} recordings of {result['seconds']:g} s, which take one worker "
            f"{one['task_s']:.2f} s and {one['task_cpu_s']:.2f} CPU seconds each. The model is the larger of that "
            "time by the number of workers, and the CPU seconds by the number of cores, plus what one worker took "
            "beside its conversions. It is calibrated with one worker, and checked with the others.",
            "",
            "| workers | seconds | model | difference | merge, seconds |",
            "|---|---|---|---|---|",
            *rows,
            "",
            *_models(result["model"]),
            "",
        ]
    )


def _models(models: list[dict[str, Any]]) -> list[str]:
    """Describe where each model stops being linear."""
    first = models[0]["costs"]
    lines = [
        f"**Model of 1 to 256 workers** with their own cores, for {models[0]['recordings']:,} recordings in a bucket: "
        f"the times above, {first['requests']} requests of {1e3 * first['latency_s']:g} ms for a recording, "
        f"{first['worker_bytes_s'] / 1e6:g} MB/s for a worker and {first['bucket_bytes_s'] / 1e9:g} GB/s for all, and "
        f"{first['start_s']:g} s until the machines run. These figures of the bucket and the machines are assumed; the "
        "options of the command state others.",
        "",
        "| | a recording | 1 worker | 16 | 64 | 256 | linear up to | then the limit is |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in models:
        hours = " | ".join(_time(seconds) for seconds in model["seconds_at"].values())
        lines.append(
            f"| {model['name']} | {model['recording_s']:.1f} s | {hours} | {model['linear_to']} workers "
            f"| {model['limit']} |"
        )
    return [
        *lines,
        "",
        f"Linear: {100 * LINEAR:.0f} % of the speed of one worker, times their number. The model gives the merge to "
        "one machine, with the time that it takes here for each recording; its files are tasks too.",
        "",
        "![Times as fast as one worker, by the number of workers](../../docs/images/fleet.png)",
    ]


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def draw(result: Mapping[str, Any], file: Path) -> None:
    """Draw the speedups of the model, and those that were measured."""
    need("matplotlib", "export").use("Agg")
    plt = need("matplotlib.pyplot", "export")
    figure, axis = plt.subplots(figsize=(7, 4.5), constrained_layout=True)
    workers = result["model"][0]["workers"]
    axis.plot(workers, workers, color="0.7", linestyle=":", label="linear")
    for model in result["model"]:
        (line,) = axis.plot(workers, model["speedups"], label=f"model, {model['name']}")
        last = model["linear_to"]
        axis.plot([last], [model["speedups"][last - 1]], "o", color=line.get_color())
        axis.annotate(
            f"{last}: {model['limit']}", (last, model["speedups"][last - 1]), (6, -14), textcoords="offset points"
        )
    measured = result["measured"]
    first = next(iter(measured.values()))["convert_s"]
    axis.plot(
        [int(count) for count in measured],
        [first / found["convert_s"] for found in measured.values()],
        "k+",
        label=f"measured on {result['machine']['cores']} cores",
    )
    axis.set(xscale="log", yscale="log", xlabel="workers", ylabel="times as fast as one worker")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.grid(True, which="major", alpha=0.3)
    axis.legend(frameon=False)
    axis.set_title(f"{result['model'][0]['recordings']:,} recordings with Ray ({result['machine']['date']})")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    plt.close(figure)


WORKERS = (1, 2, 4)
MODELLED = tuple(range(1, 257))
RECORDINGS = 10_000  # of the model
LONG_S = 30.0  # length of the longer recordings of the model
REQUESTS = 40  # of a recording: reads of 8 MB, the files of its piece, and its records


def main() -> None:
    """Measure, compare with the model, and write the results."""
    given = _arguments()
    if given.recordings < 4:
        raise SystemExit("--recordings: use 4 or more")
    result: dict[str, Any] = {"machine": machine(), "seconds": given.seconds, "recordings": given.recordings}
    with fleet(), tempfile.TemporaryDirectory(prefix="robocache-fleet-") as scratch:
        folder = Path(scratch)
        result["driver"] = {"episodes": given.episodes, **driver_cost(given.episodes)}
        bags = recordings_in(folder, given.recordings, given.seconds, given.cameras)
        size = sum(file.stat().st_size for file in bags[0].iterdir())
        few = bags[: given.recordings // 4]
        conversions(bags, given.cameras, 4, folder / "first")  # whose workers import what conversions import
        few_s = conversions(few, given.cameras, 4, folder / "few")["merge_s"]
        measured = {workers: conversions(bags, given.cameras, workers, folder / f"set{workers}") for workers in WORKERS}
    one, cores = measured[1], os.cpu_count() or 1
    costs = Costs(
        task_s=one["task_s"],
        driver_s=result["driver"]["cpu_seconds"],
        merge_s=max(0.0, measured[4]["merge_s"] - few_s) / (given.recordings - len(few)),
        start_s=max(0.0, one["convert_s"] - given.recordings * one["task_s"]),
        core_s=one["task_cpu_s"] / cores,
    )
    result["measured"] = {
        workers: {**found, "model_s": costs.seconds(given.recordings, workers) - given.recordings * costs.merge_s}
        for workers, found in measured.items()
    }
    bucket = replace(
        costs,
        core_s=0.0,
        start_s=given.start_s,
        read_bytes=size,
        written_bytes=size / 20,
        requests=REQUESTS,
        latency_s=given.latency_ms / 1e3,
        worker_bytes_s=given.worker_mb_s * 1e6,
        bucket_bytes_s=given.bucket_gb_s * 1e9,
    )
    times = LONG_S / given.seconds
    longer = replace(bucket, task_s=times * costs.task_s, read_bytes=times * size, written_bytes=times * size / 20)
    result["model"] = [
        _modelled(f"recordings of {seconds:g} s", each) for seconds, each in ((given.seconds, bucket), (LONG_S, longer))
    ]
    text = report(result)
    write_results(given.out, "fleet", result, text)
    draw(result, given.image / "fleet.png")
    print(text)


def _arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--episodes", type=int, default=10_000, help="Episodes of nothing.")
    parser.add_argument("--recordings", type=int, default=16, help="Recordings that are exported.")
    parser.add_argument("--seconds", type=float, default=2.0, help="Length of each.")
    parser.add_argument("--cameras", type=int, default=1, help="Cameras of 640x480 at 30 Hz in each.")
    parser.add_argument("--latency-ms", type=float, default=30.0, help="Of the model: a request to the bucket.")
    parser.add_argument("--worker-mb-s", type=float, default=90.0, help="Of the model: bandwidth of a worker.")
    parser.add_argument("--bucket-gb-s", type=float, default=12.5, help="Of the model: bandwidth of the bucket.")
    parser.add_argument("--start-s", type=float, default=60.0, help="Of the model: until machines have started.")
    parser.add_argument("--image", type=Path, default=Path("docs/images"), help="Folder of the plot.")
    return parser.parse_args()


def _modelled(name: str, costs: Costs) -> dict[str, Any]:
    last, limit = end_of_linear(costs, RECORDINGS, MODELLED[-1])
    return {
        "name": name,
        "recordings": RECORDINGS,
        "costs": asdict(costs),
        "recording_s": costs.recording_s,
        "linear_to": last,
        "limit": limit,
        "seconds_at": {count: costs.seconds(RECORDINGS, count) for count in (1, 16, 64, 256)},
        "workers": MODELLED,
        "speedups": speedups(costs, RECORDINGS, MODELLED),
    }


if __name__ == "__main__":
    main()
