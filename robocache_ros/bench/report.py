"""The report of a measurement: numbers by stream, a table, a plot."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bench.load import WARM_UP_S, Options
from robocache_ros.bench.processes import percentiles

Found = dict[str, Any]
PERIOD_NS = 20_000_000


def summarize(options: Options, published: Found, node: Found, consumer: Found | None, costs: Found) -> Found:
    """The numbers of one node's run.

    Args:
        options: what was measured.
        published: `sent` and `skipped` by sensor, `started_ns`.
        node: its counters, and its notes of messages and ticks.
        consumer: its notes of frames; None without a consumer.
        costs: by process, from the monitor.

    Returns:
        Plain values, latencies in ms; under `curves` arrays for the plot.
    """
    begin_ns = published["started_ns"] + round(WARM_UP_S * 1e9)
    span = (begin_ns, begin_ns + round(options.seconds * 1e9))
    found: Found = {"device": node["device"], "streams": {}, "costs": costs, "curves": {}}
    for sensor in options.load.sensors:
        found["streams"][sensor.name] = _stream(sensor.name, published, node, span)
    ticks = _within(node["ticks.tick_ns"], span)
    at_ns, out_ns = node["ticks.tick_ns"][ticks], node["ticks.published_ns"][ticks]
    if "ticks.shared_ns" in node:
        due_ns = at_ns + round(options.delay_ms * 1e6)
        found["after_emission_ms"] = {
            step: percentiles((node[f"ticks.{step}_ns"][ticks] - due_ns) / 1e6)
            for step in ("asked", "made", "ready", "shared", "published")
        }
    if consumer:
        due_ns = at_ns + round(options.delay_ms * 1e6)
        found |= _consumer(consumer, node, options, span)
        found["curves"]["jitter"] = (out_ns - due_ns) / 1e6
        found["engine"], found["memory"] = node["engine"], node["memory"]
        found["rows_lost"] = node["rows_lost"] + consumer["rows_lost"]
    else:
        found["curves"]["jitter"] = _off_grid_ms(out_ns)
    found["jitter_ms"] = percentiles(found["curves"]["jitter"])
    found["ticks"] = int(ticks.sum())
    found["ticks_due"] = round(options.seconds * 1e9 / PERIOD_NS)
    if "ticks.gpu_us" in node:
        gpu_us = node["ticks.gpu_us"][-len(node["ticks.tick_ns"]) :][ticks]
        found["gpu_us_per_tick"] = percentiles(gpu_us)
        tick_ms = np.percentile(gpu_us, 99) / 1e3 if len(gpu_us) else 0.0
        for stream in found["streams"].values():
            if stream.get("to_gpu_ms"):  # an upper bound: one of the kernels of a tick makes the tensor
                most = {k: v + tick_ms * (k != "count") for k, v in stream["to_gpu_ms"].items()}
                stream["to_tensor_on_gpu_ms"] = most
    return found


def _within(times_ns: NDArray[np.int64], span: tuple[int, int]) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (times_ns >= span[0]) & (times_ns < span[1])
    return inside


def _stream(sensor: str, published: Found, node: Found, span: tuple[int, int]) -> Found:
    number = next(i for i, name in enumerate(node["streams"]) if name.startswith(sensor))
    if "counters" in node:
        counters: Mapping[str, int] = node["counters"][node["streams"][number]]
        received = counters.get("received", 0)
        faults = {k: v for k, v in counters.items() if v and k not in ("received", "decoded", "accepted")}
    else:
        received, faults = node["received"][sensor], {}
    sent = published["sent"][sensor]
    mine = (node["messages.stream"] == number) & _within(node["messages.stamp_ns"], span)
    latency = (node["messages.received_ns"][mine] - node["messages.stamp_ns"][mine]) / 1e6
    found: Found = {
        "sent": sent,
        "received": received,
        "lost": sent - received,
        "received_share": received / sent if sent else None,
        "left_out_by_publisher": published["skipped"][sensor],
        "counters": faults,
        "to_arrival_ms": percentiles((node["messages.arrival_ns"][mine] - node["messages.stamp_ns"][mine]) / 1e6),
        "to_node_ms": percentiles(latency),
    }
    if "uploads.done_ns" in node:
        sent_up = (node["uploads.stream"] == number) & _within(node["uploads.stamp_ns"], span)
        found["to_gpu_ms"] = percentiles((node["uploads.done_ns"][sent_up] - node["uploads.stamp_ns"][sent_up]) / 1e6)
    return found


def _consumer(consumer: Found, node: Found, options: Options, span: tuple[int, int]) -> Found:
    mine = _within(consumer["tick_ns"], span)
    tick_ns, had_ns = consumer["tick_ns"][mine], consumer["had_ns"][mine]
    order = np.searchsorted(node["ticks.tick_ns"], tick_ns)
    made_ns, shared_ns = node["ticks.made_ns"][order], node["ticks.shared_ns"][order]
    joints, newest = consumer["joints_ns"][mine], node["ticks.newest_joint_ns"][order]
    return {
        "frames_in_consumer": int(mine.sum()),
        "tensors_in_consumer": consumer["tensors"],
        "made_to_consumer_ms": percentiles((had_ns - made_ns) / 1e6),
        "shared_to_consumer_ms": percentiles((had_ns - shared_ns) / 1e6),
        "shared_to_frame_ms": percentiles((consumer["framed_ns"][mine] - shared_ns) / 1e6),
        "emission_to_consumer_ms": percentiles((had_ns - tick_ns) / 1e6 - options.delay_ms),
        "newest_joint_age_in_consumer_ms": percentiles((had_ns - newest)[newest > 0] / 1e6),
        "earlier_joint_age_in_consumer_ms": percentiles((had_ns - joints)[joints > 0] / 1e6),
        "curves": {"to_consumer": (had_ns - made_ns) / 1e6},
    }


def _off_grid_ms(times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Distance of each time from the grid of 20 ms that fits them best."""
    if not len(times_ns):
        return np.zeros(0)
    phase = (times_ns - times_ns[0]).astype(np.float64)
    off = phase - np.round(phase / PERIOD_NS) * PERIOD_NS
    centred: NDArray[np.float64] = np.abs(off - np.median(off)) / 1e6
    return centred


def print_report(found: Found) -> None:
    """Print the results as tables."""
    for name in ("naive", "node"):
        if name in found:
            title = {"naive": "the naive node", "node": "the fusion node"}[name]
            sys.stdout.write("\n".join(_table(title, found[name])) + "\n\n")


def _table(title: str, part: Found) -> list[str]:
    streams = [("stream", "sent", "received", "lost", "share", "to the node, ms p50 / p99 / max", "tensor on the GPU")]
    for name, s in part["streams"].items():
        share = f"{100 * s['received_share']:.2f} %" if s["received_share"] is not None else "-"
        counts = (str(s[key]) for key in ("sent", "received", "lost"))
        streams.append((name, *counts, share, _three(s["to_node_ms"]), _three(s.get("to_tensor_on_gpu_ms"))))
    return [f"{title} ({part['device']})", *_columns(streams, "<>>>><<"), "", *_columns(_totals(part), "<<")]


def _totals(part: Found) -> list[tuple[str, ...]]:
    """What is measured of the ticks, the consumer and the processes: label and value."""
    rows: list[tuple[str, ...]] = [
        ("ticks published, of those due", f"{part['ticks']} / {part['ticks_due']}"),
        ("published after the emission time, ms", _three(part["jitter_ms"])),
    ]
    for step, after in part.get("after_emission_ms", {}).items():
        rows.append((f"  {step} after the emission time, ms", _three(after)))
    if "frames_in_consumer" in part:
        rows += [
            ("frames in the consumer", str(part["frames_in_consumer"])),
            ("made -> tensors in the consumer, ms", _three(part["made_to_consumer_ms"])),
            ("shared -> tensors in the consumer, ms", _three(part["shared_to_consumer_ms"])),
            ("  shared -> frame, GPU work not awaited, ms", _three(part["shared_to_frame_ms"])),
            ("emission time -> tensors in the consumer, ms", _three(part["emission_to_consumer_ms"])),
            ("age of the newest joints there, ms", _three(part["newest_joint_age_in_consumer_ms"])),
            ("age of the joints before the tick, ms", _three(part["earlier_joint_age_in_consumer_ms"])),
        ]
    if "gpu_us_per_tick" in part:
        rows.append(("GPU time of a tick, us", _three(part["gpu_us_per_tick"], 1)))
    for process, cost in part["costs"].items():
        if cost:
            rows.append((f"CPU of the {process}, cores", f"{cost['cpu_cores']:.3f}  {_threads(cost)}"))
            grown = f"{cost['rss_mib_first']:.0f} -> {cost['rss_mib_last']:.0f}"
            rows.append((f"memory of the {process}, MiB", f"{grown}  ({cost['rss_mib_per_minute']:+.2f} a minute)"))
            if cost.get("gpu_mib_first") is not None:
                rows.append(("GPU memory, MiB", f"{cost['gpu_mib_first']:.0f} -> {cost['gpu_mib_last']:.0f}"))
    return rows


def _columns(rows: Sequence[tuple[str, ...]], alignments: str) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(f"{cell:{a}{w}}" for cell, a, w in zip(row, alignments, widths, strict=True)).rstrip()
        for row in rows
    ]


def _three(values: Mapping[str, float] | None, digits: int = 3) -> str:
    if values is None:
        return "-"
    return " / ".join(f"{values[key]:.{digits}f}" for key in ("p50", "p99", "max"))


def _threads(cost: Found) -> str:
    shares = ", ".join(f"{name} {share:.2f}" for name, share in list(cost["cpu_cores_by_thread"].items())[:4])
    return f"({shares})"


def write_plot(found: Found, path: Path) -> None:
    """Draw jitter, latency and memory of the runs; prints a hint where matplotlib is not installed."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        sys.stdout.write("no plot: matplotlib is not installed (pip install 'robocache_ros[export]')\n")
        return
    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4))
    for name in ("naive", "node"):
        if name not in found:
            continue
        curves, costs = found[name]["curves"], found[name]["costs"]["node"]
        _share_above(axes[0], np.abs(curves["jitter"]), name)
        if "to_consumer" in curves:
            _share_above(axes[1], curves["to_consumer"], name)
        if costs:
            axes[2].plot(costs["memory_samples"]["s"], costs["memory_samples"]["rss_mib"], label=name)
    axes[0].set(title="published after the emission time", xlabel="ms", ylabel="share of ticks later than this")
    axes[1].set(title="frame made to tensors in the consumer", xlabel="ms", ylabel="share of frames later than this")
    axes[2].set(title="private memory of the node", xlabel="s", ylabel="MiB")
    for axis in axes:
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _share_above(axis: Any, values: NDArray[np.float64], label: str) -> None:
    """The share of values above each: a tail is read off directly."""
    if len(values):
        axis.loglog(np.maximum(np.sort(values), 1e-3), 1 - np.arange(len(values)) / len(values), label=label)
