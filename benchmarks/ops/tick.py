"""One tick of the fusion engine on the GPU, and torch operations that do the same, in one run.

    python -m benchmarks.ops.tick

Two 1920 x 1080 rgb8 cameras to 3 x 224 x 224, a 64^3 occupancy grid of 100,000 points, eight vector streams of 40
columns together, horizon 16. Every tick has new samples, which rotate through rings larger than the L2 cache. Device
time is between two events around the tick, put behind work that keeps the GPU busy until all of it is queued: from the
upload of the plan to the last kernel, without the gaps of the host. The samples of a tick, 14 MB, are pushed just
before it, so that its Python code and objects are not in the caches of the host. `CUDA calls` is the time in the calls
of the driver, as measured by ticks of their own; the rest of a tick is Python.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.ops import device_time
from benchmarks.report import argument_parser
from robocache_ros.decode import CloudPayload, ImagePayload, PointField
from robocache_ros.engine import FusionEngine
from robocache_ros.engine.backends import gpu
from robocache_ros.ops import tick as ops_tick
from robocache_ros.spec import IMAGENET, FusionSpec, load_spec

MS = 1_000_000
T0 = 1_760_000_000 * 10**9
HEIGHT, WIDTH, POINTS = 1080, 1920, 100_000
VECTORS = {"position": 7, "velocity": 7, "effort": 7, "pose": 3, "turn": 4, "rate": 3, "pull": 3, "force": 6}
ORIGIN, VOXEL, GRID = (-0.64, -0.64, 0.0), 0.02, 64
FIELDS = tuple(PointField(name, 4 * i, 7, 1) for i, name in enumerate(("x", "y", "z", "intensity")))


def make_spec() -> FusionSpec:
    """The streams that the docstring of the module lists."""
    array = {"type": "std_msgs/msg/Float64MultiArray", "stamp": "receive", "rate_hz": 500}
    image = {"type": "sensor_msgs/msg/Image", "rate_hz": 50, "image": {"size": [224, 224], "normalize": "imagenet"}}
    grid = {"origin_m": list(ORIGIN), "size_m": VOXEL, "shape": [GRID] * 3}
    streams: dict[str, Any] = {
        name: {**array, "topic": f"/{name}", "dim": width, "align": "slerp" if name == "turn" else "linear"}
        for name, width in VECTORS.items()
    }
    streams |= {name: {**image, "topic": f"/{name}"} for name in ("front", "wrist")}
    streams["cloud"] = {"topic": "/cloud", "type": "sensor_msgs/msg/PointCloud2", "rate_hz": 50, "voxels": grid}
    return load_spec({"robocache": 1, "rate_hz": 50, "delay_ms": 5, "horizon": 16, "streams": streams})


class Robot:
    """Random samples for each tick; `feed` gives an engine those of tick k and returns its time."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 255, (6, HEIGHT * WIDTH * 3), dtype=np.uint8)
        points = rng.uniform(-0.7, 1.4, (4, POINTS, 4)).astype(np.float32)
        self.points = points.view(np.uint8).reshape(4, -1)
        self.vectors = {name: rng.normal(size=(64, width)).astype(np.float32) for name, width in VECTORS.items()}
        self.costs: dict[str, list[float]] = {"vector": [], "image": [], "image in a buffer": [], "cloud": []}

    def feed(self, engine: FusionEngine, k: int) -> int:
        """Push the samples of tick k."""
        now = T0 + k * 20 * MS  # the tick; the last vector sample is a millisecond after it
        for name, rows in self.vectors.items():
            for i in range(10):
                self._push(engine, "vector", name, now - 17 * MS + i * 2 * MS, rows[(10 * k + i) % 64])
        for i, name in enumerate(("front", "wrist")):
            data, kind = self.images[(2 * k + i) % len(self.images)], "image"
            if name == "wrist":  # as in a node, where the middleware writes the message there
                buffer, kind = engine.buffer(name, data.size)[: data.size], "image in a buffer"
                buffer[:] = data
                data = buffer
            self._push(engine, kind, name, now - MS, ImagePayload(data, "rgb8", WIDTH, HEIGHT, 3 * WIDTH))
        data = self.points[k % len(self.points)]
        self._push(engine, "cloud", "cloud", now - MS, CloudPayload(data, POINTS, 1, 16, len(data), FIELDS))
        return now

    def _push(self, engine: FusionEngine, kind: str, stream: str, stamp: int, value: Any) -> None:
        start = time.perf_counter()
        engine.push(stream, stamp, stamp, value)
        self.costs[kind].append((time.perf_counter() - start) * 1e6)


def device_us(call: Callable[[], Any]) -> tuple[float, float]:
    """Microseconds of the launches of a call on the GPU, and of the call itself on the host."""
    begin, end = device_time.timer(), device_time.timer()
    torch.cuda._sleep(4_000_000)  # type: ignore[no-untyped-call]  # two milliseconds
    begin.record()
    host = host_us(call)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000, host


def host_us(call: Callable[[], Any]) -> float:
    """Microseconds of a call on the host."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


class Eager:
    """The tick as torch operations: stamps and samples are on the GPU, in tensors of their own."""

    def __init__(self, robot: Robot) -> None:
        self.stamps = {name: torch.arange(330, device="cuda") * 2 * MS for name in VECTORS}
        self.samples = {name: torch.randn(330, width, device="cuda") for name, width in VECTORS.items()}
        self.images = torch.from_numpy(robot.images).cuda().repeat(3, 1)  # larger than the L2 cache
        self.points = torch.from_numpy(robot.points).cuda().view(torch.float32).view(4, POINTS, 4).repeat(4, 1, 1)
        mean, std = (torch.tensor(values, device="cuda").view(3, 1, 1) for values in IMAGENET)
        self.mean, self.std = mean, std
        self.ticks = [torch.tensor([(300 + k) * 2 * MS + MS], device="cuda") for k in range(20)]
        self.origin = torch.tensor(ORIGIN, device="cuda")

    def vectors(self, k: int) -> Tensor:
        """(1, 40) blended between the neighbours of a tick."""
        columns = []
        tick = self.ticks[k % 20]
        for name in VECTORS:
            upper = torch.searchsorted(self.stamps[name], tick, right=True)
            lower = upper - 1
            t0, t1 = self.stamps[name][lower], self.stamps[name][upper]
            weight = ((tick - t0).double() / (t1 - t0).double()).float()[:, None]
            columns.append(torch.lerp(self.samples[name][lower], self.samples[name][upper], weight))
        return torch.cat(columns, dim=1)

    def image(self, k: int) -> Tensor:
        """(1, 3, 224, 224) normalised."""
        image = self.images[k % len(self.images)].view(HEIGHT, WIDTH, 3).permute(2, 0, 1)[None].float()
        small = torch.nn.functional.interpolate(image, (224, 224), mode="bilinear", align_corners=False)
        return (small / 255 - self.mean) / self.std

    def grid(self, k: int) -> Tensor:
        """(64, 64, 64) occupancy."""
        cell = torch.floor((self.points[k % len(self.points), :, :3] - self.origin) / VOXEL).long()
        inside = ((cell >= 0) & (cell < GRID)).all(dim=1)
        flat = (cell[:, 0] * GRID + cell[:, 1]) * GRID + cell[:, 2]
        grid = torch.zeros(GRID**3 + 1, dtype=torch.uint8, device="cuda")
        grid[torch.where(inside, flat, GRID**3)] = 1
        return grid[:-1].view(GRID, GRID, GRID)

    def tick(self, k: int) -> None:
        """The complete tick."""
        self.vectors(k)
        self.image(2 * k)
        self.image(2 * k + 1)
        self.grid(k)

    def tick_and_wait(self, k: int) -> None:
        """The complete tick, and wait for the GPU."""
        self.tick(k)
        torch.cuda.synchronize()


def row(name: str, device: list[float], host: list[float]) -> dict[str, Any]:
    """A line of the table."""
    cells: dict[str, Any] = {"what": name}
    if device:
        cells |= {"GPU p50": statistics.median(device), "GPU p99": float(np.quantile(device, 0.99))}
    return cells | {"host p50": statistics.median(host), "host p99": float(np.quantile(host, 0.99))}


def measure_engine(robot: Robot, ticks: int, normalized: bool) -> tuple[list[dict[str, Any]], FusionEngine]:
    """Rows of ticks with new samples and of ticks that hold the old ones."""
    engine = FusionEngine(make_spec(), "cuda", normalized=normalized)
    engine.advance(T0 - 1)
    new, held = [], []
    for k in range(ticks):
        now = robot.feed(engine, 2 * k)
        torch.cuda.synchronize()
        new.append(device_us(partial(engine.advance, now + 5 * MS, limit=1)))
        held.append(device_us(partial(engine.advance, now + 25 * MS, limit=1)))
    kind = "float32, normalised" if normalized else "uint8"
    warm = ticks // 10
    return [
        row(f"tick, images {kind}", *(list(values) for values in zip(*new[warm:], strict=True))),
        row(f"tick that holds images and cloud, {kind}", *(list(values) for values in zip(*held[warm:], strict=True))),
    ], engine


class TimedCalls:
    """Adds up the time of the CUDA calls of an engine's ticks."""

    def __init__(self, engine: FusionEngine) -> None:
        self.us = 0.0
        self.count = 0
        for name in ("copy_async", "record_event", "wait_event"):
            for module in (gpu, ops_tick):
                if hasattr(module, name):
                    setattr(module, name, self._timed(getattr(module, name)))
        backend: Any = engine._backend
        backend._launch = self._timed(backend._launch)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = call(*arguments)
            self.us += (time.perf_counter() - start) * 1e6
            self.count += 1
            return result

        return timed


def measure_calls(robot: Robot, ticks: int) -> dict[str, Any]:
    """The row of the CUDA calls of a tick with new samples; later ticks of this process are timed, too."""
    engine = FusionEngine(make_spec(), "cuda")
    engine.advance(T0 - 1)
    calls, times = TimedCalls(engine), []
    for k in range(ticks):
        now = robot.feed(engine, 2 * k)
        torch.cuda.synchronize()
        calls.us, calls.count = 0.0, 0
        engine.advance(now + 5 * MS, limit=1)
        times.append(calls.us)
        count = calls.count
        engine.advance(now + 25 * MS, limit=1)
    return row(f"{count} CUDA calls of a tick", [], times[ticks // 10 :])


def copies(robot: Robot, ticks: int) -> list[dict[str, Any]]:
    """Rows of plain copies of the images and clouds into pinned memory, by one thread."""
    rows = []
    for name, sources in (("image", robot.images), ("cloud", robot.points)):
        targets = torch.empty((3, sources.shape[1]), dtype=torch.uint8, pin_memory=True).numpy()
        times = [host_us(partial(np.copyto, targets[k % 3], sources[k % len(sources)])) for k in range(ticks)]
        rows.append(row(f"copy of {name} into pinned memory", [], times[ticks // 10 :]))
    return rows


def main() -> None:
    """Measure and write tick.json and tick.md."""
    parser = argument_parser(__doc__)
    parser.add_argument("--ticks", type=int, default=400, help="Ticks of each measurement.")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    robot = Robot()
    extra: dict[str, Any] = {
        "tick": "2 x 1920x1080 rgb8 to 3x224x224, 64^3 occupancy of 100,000 points, 40 columns, horizon 16",
    }
    method = "GPU: events around each tick, on a GPU that is busy until all of the tick is queued"
    with device_time.written("tick", "A tick of the fusion engine", extra, arguments.out, method) as rows:
        measured, engine = measure_engine(robot, arguments.ticks, False)
        rows += measured
        memory = {place: sum(r.total_bytes for r in engine.memory() if r.place == place) for place in ("gpu", "pinned")}
        extra["GPU memory, MiB"], extra["pinned memory, MiB"] = (memory[place] / 2**20 for place in ("gpu", "pinned"))
        extra["counters"] = engine.counters()
        costs = {kind: values[len(values) // 10 :] for kind, values in robot.costs.items()}
        rows += measure_engine(robot, arguments.ticks, True)[0]
        eager = Eager(robot)
        for k in range(20):
            eager.tick(k)
        device = [device_us(partial(eager.tick, k))[0] for k in range(arguments.ticks)]
        torch.cuda.synchronize()  # some of the operations wait for the GPU: the host is measured with an idle GPU
        host = [host_us(partial(eager.tick_and_wait, k)) for k in range(arguments.ticks)]
        rows.append(row("torch operations, eager", device, host))
        rows += [row(f"push of {kind}", [], values) for kind, values in costs.items()]
        rows += copies(robot, arguments.ticks)
        rows.append(measure_calls(robot, arguments.ticks))


if __name__ == "__main__":
    main()
