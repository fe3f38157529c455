"""What `check` and `export` print: what to expect of recordings, a dry run, a complete or stopped export, a shard."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from robocache_ros.cli import tables
from robocache_ros.cli.program import log_line, print_document
from robocache_ros.cli.progress import duration
from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.exporter.report import recording_facts, shares
from robocache_ros.formats.recording import drop_causes
from robocache_ros.storage.paths import AnyPath

if TYPE_CHECKING:
    from robocache_ros.exporter.datasets import ExportResult
    from robocache_ros.exporter.options import ExportOptions
    from robocache_ros.exporter.preview import DryRun, Expected
    from robocache_ros.exporter.request import Output
    from robocache_ros.exporter.shards import ShardResult

MAX_PROBLEM_LINES = 20  # problems that are listed
_MAX_NAMED_RECORDINGS = 2  # recordings that are named with a problem


def stream_table(expected: Expected) -> Table:
    """Return the table of one recording, a row per stream: its messages, and the validity to expect."""
    result = expected.result
    title, numbers = f"{printable(expected.path, 100)}{_episodes_of(expected)}", ("aligned", "held", "invalid")
    table = tables.plain_table(title, ("stream", "topic"), ("messages", *numbers))
    known = shares(result.valid, result.spec) if result else {}
    for stream in expected.streams:
        row = known.get(stream.stream, {})
        cells = [tables.percent(row[state]) if row else "" for state in numbers]
        mark = "[red]does not match[/]" if stream.problems else ""
        table.add_row(stream.stream, escape(stream.topic), str(stream.messages), *([mark, "", ""] if mark else cells))
    return table


def recordings_table(all_expected: Sequence[Expected]) -> Table:
    """Return the table of several recordings, a row each."""
    matching = sum(not expected.problems for expected in all_expected)
    match = "matches" if len(all_expected) == 1 else "match"
    title = f"{matching} of {number_of(len(all_expected), 'recording')} {match}"
    table = tables.plain_table(title, ("recording",), ("s", "streams", "episodes", "frames", "kept"))
    table.add_column("least valid stream", no_wrap=True)
    for expected in all_expected:
        result = expected.result
        found = sum(not stream.problems for stream in expected.streams)
        streams = f"{found} of {len(expected.streams)}" if expected.streams else "-"
        name = escape(f"{printable(expected.path, 100)}{_part_of(expected)}")
        if result is None or not len(result.ticks_ns):
            table.add_row(name, "-", streams, *("-" * 4))
            continue
        invalid = {stream: row["invalid"] for stream, row in shares(result.valid, result.spec).items()}
        worst = max(invalid, key=lambda stream: invalid[stream])
        numbers = (str(len(result.episodes)), str(result.frames), tables.percent(result.frames / len(result.ticks_ns)))
        table.add_row(name, f"{result.duration_s:.1f}", streams, *numbers, f"{worst} {1 - invalid[worst]:.1%}")
    return table


def problem_lines(all_expected: Sequence[Expected]) -> list[str]:
    """Return a line per problem; recordings with the same problem share one."""
    found: dict[str, list[str]] = {}
    for expected in all_expected:
        problems = expected.problems
        if len(problems) > 1 and all(stream.problems for stream in expected.streams):
            problems = (f"none of the {len(expected.streams)} streams matches",)
        for problem in problems:
            where = printable(expected.path, 60)
            bare = problem
            for prefix in (f"{expected.path}: ", f"{where}: ", f"{expected.path}/"):  # the last one: of a file in it
                bare = bare.removeprefix(prefix)
            found.setdefault(bare, []).append(where)
    lines = []
    for problem, names in list(found.items())[:MAX_PROBLEM_LINES]:
        more = f" and {len(names) - _MAX_NAMED_RECORDINGS} more" if len(names) > _MAX_NAMED_RECORDINGS else ""
        lines.append(f"{', '.join(names[:_MAX_NAMED_RECORDINGS])}{more}: {problem}")
    return lines + [f"and {number_of(len(found) - MAX_PROBLEM_LINES, 'more problem')}"] * (
        len(found) > MAX_PROBLEM_LINES
    )


def expected_facts(expected: Expected) -> dict[str, Any]:
    """Return what `--json` states about a recording before its export."""
    result, planned = expected.result, expected.recording
    validity = shares(result.valid, result.spec) if result else {}
    return {
        "path": planned.path,
        "task": planned.task or None,
        "success": planned.success,
        "matches": not expected.problems,
        "problems": expected.problems,
        "streams": {
            stream.stream: {
                "topic": stream.topic,
                "type": stream.type,
                "messages": stream.messages,
                "problems": stream.problems,
                "validity": validity.get(stream.stream),
            }
            for stream in expected.streams
        },
        "expected": recording_facts(result) if result else None,
    }


def _part_of(expected: Expected) -> str:
    planned = expected.recording
    named = (("from", planned.start), ("to", planned.stop))
    return "".join(f" {name} {at.ns / 1e9:.10g} s" for name, at in named if at)


def _episodes_of(expected: Expected) -> str:
    result = expected.result
    if result is None:
        return ""
    total = f"{result.frames:,} of {number_of(len(result.ticks_ns), 'tick')}"
    return f" · {result.duration_s:.1f} s · {total} in {number_of(len(result.episodes), 'episode')}"


def print_dry_run(runs: Sequence[tuple[Output, DryRun]], out: AnyPath) -> None:
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


def _print_dataset(output: Output, run: DryRun, out: AnyPath) -> None:
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


def print_dry_run_json(runs: Sequence[tuple[Output, DryRun]], out: AnyPath) -> None:
    """Print the document of a dry run, with a list of the datasets if there are several."""
    problems, contents = _problems(runs), [_dry_run_content(output, run) for output, run in runs]
    content = contents[0] if len(runs) == 1 else {"datasets": contents}
    content = {"dry_run": True, "out": out, **content, "free_bytes": _free_bytes(out)}
    print_document("export", content, exit_code=int(bool(problems)), errors=problems)


def _dry_run_content(output: Output, run: DryRun) -> dict[str, Any]:
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
        "estimate": estimate and {**vars(estimate), "sample": estimate.sample.path},
    }


def _free_bytes(out: AnyPath) -> int | None:
    """Return the free space where a folder is, or will be."""
    if not isinstance(out, Path):
        return None
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.1f} MB"


def show_result(result: ExportResult, *, report: bool) -> None:
    """Print the table of an export, its notes and its location."""
    if result.completed_elsewhere:
        tables.show_notes(result.notes)
        tables.say(f"{printable(result.out, tables.PATH)}: complete")
        return
    tables.show(tables.export_table(result))
    for stream in result.recordings[0].spec.streams:
        counts = sum((recording.counters[stream.name] for recording in result.recordings), Counter[str]())
        if counts["dropped"]:
            messages = f"{counts['dropped']:,} of {counts['received']:,} messages"
            tables.say(f"{stream.name}: {messages} dropped ({drop_causes(counts)})")
        if counts["filled"]:
            messages = f"{counts['filled']:,} messages"
            tables.say(f"{stream.name}: NaN or infinite values of {messages} filled, as the spec says")
    tables.show_notes(result.notes)
    for recording in result.recordings:
        tables.show_notes(recording.notes)
        if left_out := recording.left_out():
            tables.say(f"{printable(recording.bag.name, 120)}: {left_out}")
    tables.show_notes(f"not in the dataset: {loss.reason}" for loss in result.failed)
    where = printable(result.out, tables.PATH)
    tables.say(
        f"wrote {where} in {result.seconds:.2f} s ({result.times_real_time:.1f} x real time)"
        + (f"; open {tables.argument(result.out / 'report.html')}" if report else "")
    )


def print_result_json(results: Sequence[ExportResult], out: AnyPath, *, report: bool) -> None:
    """Print the document of an export, with a list of the datasets if there are several."""
    contents = [_result_content(result, report) for result in results]
    errors = [f"not in the dataset: {loss.reason}" for result in results for loss in result.failed]
    if len(results) == 1:
        content = contents[0]
    else:
        named = [{"dataset": result.out.name, **each} for result, each in zip(results, contents, strict=True)]
        content = {"out": out, "seconds": results[0].seconds, "datasets": named}
    print_document("export", content, exit_code=int(bool(errors)), errors=errors)


def _result_content(result: ExportResult, report: bool) -> dict[str, Any]:
    return {
        "out": result.out,
        "report": result.out / "report.html" if report else None,
        "report_json": result.out / "report.json" if report else None,
        "seconds": result.seconds,
        "times_real_time": result.times_real_time,
        "frames": result.frames,
        "episodes": result.episodes,
        "notes": result.notes,
        "by_another": result.completed_elsewhere,
        "recordings": [recording_facts(recording) for recording in result.recordings],
        "failed": [{"path": loss.bag, "reason": loss.reason} for loss in result.failed],
    }


@contextmanager
def continued(
    out: AnyPath, pieces: str | AnyPath | None, *, json: bool = False, log_json: bool = False
) -> Iterator[None]:
    """If Ctrl-C or SIGTERM stops an export, print what is kept and how to continue."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        from robocache_ros.exporter.target import piece_store

        where = printable(pieces or out, 60)
        try:
            kept = piece_store(out, pieces).count()
        except RoboCacheError:  # of a bucket
            kept = None
        if kept is None:
            text = f"stopped; converted recordings are kept in {where}: run the same command again"
        elif kept:
            recordings = f"{number_of(kept, 'converted recording')} {'is' if kept == 1 else 'are'}"
            text = f"stopped; {recordings} kept in {where}: run the same command again"
        else:
            text = "stopped; nothing is kept: run the same command to start again"
        # typer 0.9 would exit with 1 after Ctrl-C, and Ray replaces the code of SIGTERM
        code = 128 + (signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM)
        if json:
            print_document("export", {}, exit_code=code, errors=[text])
        if log_json:
            log_line("stopped", message=text, kept=kept)
        if not json and not log_json:
            tables.complain(text)
        raise SystemExit(code) from None


# `robocache export --shard`: its argument, and its output.


def check_shard(options: ExportOptions, *, dry_run: bool) -> None:
    """Refuse a shard where it is not possible."""
    if options.shard and dry_run:
        raise RoboCacheError("--shard: not with --dry-run, which tells of all recordings; leave out one of them")
    if options.shard and options.pieces is None:
        raise RoboCacheError("--shard: needs a folder of pieces that all shards can write; add --pieces DIR")


def show_shard(result: ShardResult, out: AnyPath, *, json: bool) -> None:
    """Print what a shard has done, except for the dataset if it has written it."""
    failed = [f"failed: {loss.reason}" for loss in result.losses]
    if not json:
        tables.show_notes(failed)
        tables.say(shard_line(result, out))
    elif not result.results:
        counts = {name: getattr(result, name) for name in ("own", "converted", "failed", "total", "written")}
        content = {"out": out, "shard": str(result.shard), **counts}
        print_document("export", content, exit_code=shard_exit_code(result), errors=failed)


def shard_exit_code(result: ShardResult) -> int:
    """Return the exit code of a shard: 1 if recordings are left out, those of all shards if it wrote the dataset."""
    losses = [loss for written in result.results for loss in written.failed] or result.losses
    return int(any(not loss.dropped for loss in losses))


def shard_line(result: ShardResult, out: AnyPath) -> str:
    """Describe in one line how far the export is."""
    where = printable(out, 60)
    are = "is" if result.total == 1 else "are"
    text = f"{result.converted:,} of {number_of(result.total, 'recording')} {are} converted"
    if result.failed:
        text += f", {result.failed:,} failed"
    return {
        "waiting": f"{text}; the last shard writes the dataset",
        "blocked": f"{text}; repair those and run their shards again, or all with --on-error skip",
        "elsewhere": f"{text}; another export is writing {where}",
        "before": f"{text}; {where} is complete",
        "here": text,
    }[result.written]
