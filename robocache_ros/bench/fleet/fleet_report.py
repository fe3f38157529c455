"""The results of the fleet benchmark as Markdown and as a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robocache_ros.bench.fleet.scaling import LINEAR
from robocache_ros.extras import need


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
            f"`python -m robocache_ros.bench.fleet` on {on['cores']} cores of an {on['cpu']}, Python {on['python']}, "
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
