"""Device time as medians of CUDA-graph replays, and results with the machine and the date."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import published
from benchmarks.processes import end_on_sigterm
from benchmarks.report import RESULTS, write_results


def device_us(calls: Sequence[Callable[[], Any]], at_least: int = 24, replays: int = 25) -> float:
    """Median microseconds of one call; `calls` rotate, so give as many as their inputs need to exceed the L2 cache."""
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    rounds = -(-at_least // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    for _ in range(3):
        graph.replay()
    times: list[float] = []
    for _ in range(replays):
        start, end = timer(), timer()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / (rounds * len(calls)))
    return statistics.median(times)


def timer() -> Any:
    """A CUDA event that records its time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def copy_rate() -> float:
    """Bytes read and written per second by a plain copy of 2 GiB on a stream.

    Not in a CUDA graph: there the driver copies at two thirds of the rate.
    """
    size = 1 << 31
    source = torch.randint(0, 1 << 30, (size // 4,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    times: list[float] = []
    for _ in range(12):
        start, end = timer(), timer()
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return 2 * size / statistics.median(times[2:])


def copy_us(size: int, rotate: int = 1 << 28) -> float:
    """Median microseconds of a kernel that reads and writes `size` bytes in all, from rotating buffers."""
    shape = (2, size // 8)
    buffers = min(rotate // size + 1, 64)
    pairs = [torch.randint(0, 1 << 30, shape, dtype=torch.int32, device="cuda") for _ in range(buffers)]
    return device_us([partial(torch.bitwise_not, pair[0], out=pair[1]) for pair in pairs])


def machine() -> dict[str, str]:
    """The machine of the measurement."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "sm": f"{properties.multi_processor_count} x sm_{properties.major}{properties.minor}",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


@contextmanager
def written(
    name: str,
    title: str,
    extra: dict[str, Any],
    folder: Path = RESULTS,
    method: str = "medians of CUDA-graph replays",
) -> Iterator[list[dict[str, Any]]]:
    """Give a list for rows, and `write` what it has at the end, also if the benchmark fails or is ended."""
    end_on_sigterm()
    rows: list[dict[str, Any]] = []
    try:
        yield rows
    finally:
        if rows:
            write(name, title, rows, extra, folder, method)


def write(
    name: str,
    title: str,
    rows: Sequence[dict[str, Any]],
    extra: dict[str, Any],
    folder: Path = RESULTS,
    method: str = "medians of CUDA-graph replays",
) -> None:
    """Write `name`.json, and `name`.md with a table of the rows; `method` names how they are measured.

    A row whose `workload` has a published figure shows it; its source is below the table's head.
    """
    about = machine()
    rows = [{**row, **published.columns(row.get("workload", ""))} for row in rows]
    extra = {**extra, **published.notes([row.get("workload", "") for row in rows])}
    record = {"machine": about, "method": method, **extra, "rows": rows}
    heads = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"# {title}", "", ", ".join(about.values()) + f". Microseconds; {method}.", ""]
    lines += [f"{key}: {value}" for key, value in extra.items() if not isinstance(value, list | dict)]
    lines += ["", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for row in rows:
        cells = (row.get(head, "") for head in heads)
        lines.append("| " + " | ".join(f"{c:.2f}" if isinstance(c, float) else str(c) for c in cells) + " |")
    text = "\n".join(lines) + "\n"
    write_results(folder, name, record, text)
    print(text)
