"""The output of `robocache export --dry-run`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robocache_ros.cli.output import tables
from robocache_ros.cli.output.expected_tables import expected_facts, problem_lines, recordings_table, stream_table
from robocache_ros.cli.output.export_tally import duration
from robocache_ros.cli.output.json_output import print_document
from robocache_ros.errors import number_of, printable
from robocache_ros.export.outputs.output import Output
from robocache_ros.export.preview.dry_run import DryRun
from robocache_ros.remote.any_path import is_url


def print_dry_run(runs: Sequence[tuple[Output, DryRun]], out: Path) -> None:
    """Print what an export would make, for each dataset."""
    for output, run in runs:
        if output.name:
            tables.say(f"{printable(output.name, 80)}:")
        _print_dataset(output, run, out / output.name)
    estimates = [run.estimate for _, run in runs if run.estimate]
    size = sum(estimate.size_bytes for estimate in estimates)
    if len(estimates) > 1:
        seconds = sum(estimate.seconds for estimate in estimates)
        tables.say(
            f"{number_of(len(runs), 'dataset')}: about {_size(size)}, twice that while it runs; less than "
            f"{duration(seconds)}, because each recording is read once"
        )
    if (free := _free_bytes(out)) is not None and free < 2 * size:
        tables.show_notes([f"{printable(out, 80)}: only {_size(free)} are free there"])
    for line in _problems(runs):
        tables.complain(line)


def _print_dataset(output: Output, run: DryRun, out: Path) -> None:
    expected = run.expected
    tables.show(stream_table(expected[0]) if len(expected) == 1 else recordings_table(expected))
    formats, recordings = ", ".join(output.options.formats), number_of(len(run.accepted), "recording")
    tables.say(
        f"would write {formats} to {printable(out, 80)}: {number_of(run.frames, 'frame')} in "
        f"{number_of(run.episodes, 'episode')} of {recordings}"
    )
    tables.show_notes(run.notes)
    if run.converted:
        tables.say(f"already converted by an earlier export: {len(run.converted)} of {recordings}")
    if estimate := run.estimate:
        tables.say(
            f"about {_size(estimate.size_bytes)}, twice that while it runs; about {duration(estimate.seconds)} with "
            f"{number_of(estimate.jobs, 'process', 'es')}"
        )
        tables.say(
            f"  estimated from the export of {number_of(estimate.sample_frames, 'frame')} of "
            f"{printable(estimate.sample.path, 80)} to a temporary folder"
        )


def _problems(runs: Sequence[tuple[Output, DryRun]]) -> list[str]:
    """Return the lines for what is wrong, with the name of the dataset if there are several."""
    return [
        f"{printable(output.name, 40)}: {line}" if output.name else line
        for output, run in runs
        for line in problem_lines(run.expected)
    ]


def print_dry_run_json(runs: Sequence[tuple[Output, DryRun]], out: Path) -> None:
    """Print the document of a dry run, with a list of the datasets if there are several."""
    problems, contents = _problems(runs), [_content(output, run) for output, run in runs]
    content = contents[0] if len(runs) == 1 else {"datasets": contents}
    content = {"dry_run": True, "out": out, **content, "free_bytes": _free_bytes(out)}
    print_document("export", content, exit_code=int(bool(problems)), errors=problems)


def _content(output: Output, run: DryRun) -> dict[str, Any]:
    estimate = run.estimate
    return {
        **({"dataset": output.name} if output.name else {}),
        "formats": output.options.formats,
        "frames": run.frames,
        "episodes": run.episodes,
        "notes": run.notes,
        "recordings": [
            {**expected_facts(expected), "converted": expected.recording.frames_of in run.converted}
            for expected in run.expected
        ],
        "estimate": estimate
        and {
            "size_bytes": estimate.size_bytes,
            "seconds": estimate.seconds,
            "jobs": estimate.jobs,
            "sample": estimate.sample.path,
            "sample_frames": estimate.sample_frames,
        },
    }


def _free_bytes(out: Path) -> int | None:
    """Return the free space where a folder is, or will be."""
    if is_url(out):
        return None
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.1f} MB"
