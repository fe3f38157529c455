"""The output of `robocache export --dry-run`."""

from __future__ import annotations

import shutil
from pathlib import Path

from robocache_ros.cli.output import tables
from robocache_ros.cli.output.expected_tables import expected_facts, problem_lines, recordings_table, stream_table
from robocache_ros.cli.output.export_tally import duration
from robocache_ros.cli.output.json_output import print_document
from robocache_ros.errors import printable
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.preview.dry_run import DryRun


def print_dry_run(run: DryRun, out: Path, options: ExportOptions) -> None:
    """Print what an export would make."""
    expected = run.expected
    tables.show(stream_table(expected[0]) if len(expected) == 1 else recordings_table(expected))
    formats, accepted = ", ".join(options.formats), len(run.accepted)
    tables.say(
        f"would write {formats} to {printable(out, 80)}: {run.frames} frames in {_count(run.episodes, 'episode')} of "
        f"{_count(accepted, 'recording')}"
    )
    if run.converted:
        tables.say(f"already converted by an earlier export: {len(run.converted)} of {_count(accepted, 'recording')}")
    if estimate := run.estimate:
        tables.say(
            f"about {_size(estimate.size_bytes)}, twice that while it runs; about {duration(estimate.seconds)} with "
            f"{_count(estimate.jobs, 'process', 'es')}"
        )
        tables.say(
            f"  estimated from the export of {estimate.sample_frames} frames of {printable(estimate.sample.path, 80)} "
            "to a temporary folder"
        )
        free = _free_bytes(out)
        if free < 2 * estimate.size_bytes:
            tables.show_notes([f"{printable(out, 80)}: only {_size(free)} are free there"])
    for line in problem_lines(expected):
        tables.complain(line)


def print_dry_run_json(run: DryRun, out: Path, options: ExportOptions) -> None:
    """Print the document of a dry run."""
    problems, estimate = problem_lines(run.expected), run.estimate
    content = {
        "dry_run": True,
        "out": out,
        "formats": options.formats,
        "frames": run.frames,
        "episodes": run.episodes,
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
        "free_bytes": _free_bytes(out),
    }
    print_document("export", content, exit_code=int(bool(problems)), errors=problems)


def _free_bytes(out: Path) -> int:
    """Return the free space where a folder is, or will be."""
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{plural if number != 1 else ''}"


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.1f} MB"
