"""The output of `robocache export` at its end, for complete and stopped exports."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robocache_ros.cli.output import tables
from robocache_ros.cli.output.json_output import log_line, print_document
from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.export.exported_recording import drop_causes
from robocache_ros.export.outputs.new_dataset import piece_store
from robocache_ros.export.report.exported_facts import recording_facts

if TYPE_CHECKING:
    from robocache_ros.export.outputs.export_result import ExportResult


def show(result: ExportResult, *, report: bool) -> None:
    """Print the table of an export, its notes and its location."""
    if result.by_another:
        tables.show_notes(result.notes)
        tables.say(f"{printable(result.out, tables.PATH)}: complete")
        return
    tables.show(tables.export_table(result))
    for stream in result.recordings[0].spec.streams:
        counts = sum((recording.counters[stream.name] for recording in result.recordings), Counter[str]())
        if counts["dropped"]:
            messages = f"{counts['dropped']} of {counts['received']} messages"
            tables.say(f"{stream.name}: {messages} dropped ({drop_causes(counts)})")
        if counts["filled"]:
            tables.say(f"{stream.name}: NaN or infinite values of {counts['filled']} messages filled, as the spec says")
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


def print_json(results: Sequence[ExportResult], out: Path, *, report: bool) -> None:
    """Print the document of an export, with a list of the datasets if there are several."""
    contents = [_content(result, report) for result in results]
    errors = [f"not in the dataset: {loss.reason}" for result in results for loss in result.failed]
    if len(results) == 1:
        content = contents[0]
    else:
        named = [{"dataset": result.out.name, **told} for result, told in zip(results, contents, strict=True)]
        content = {"out": out, "seconds": results[0].seconds, "datasets": named}
    print_document("export", content, exit_code=int(bool(errors)), errors=errors)


def _content(result: ExportResult, report: bool) -> dict[str, Any]:
    return {
        "out": result.out,
        "report": result.out / "report.html" if report else None,
        "report_json": result.out / "report.json" if report else None,
        "seconds": result.seconds,
        "times_real_time": result.times_real_time,
        "frames": result.frames,
        "episodes": result.episodes,
        "notes": result.notes,
        "by_another": result.by_another,
        "recordings": [recording_facts(recording) for recording in result.recordings],
        "failed": [{"path": loss.bag, "reason": loss.reason} for loss in result.failed],
    }


@contextmanager
def continued(out: Path, pieces: Path | None, *, json: bool = False, log_json: bool = False) -> Iterator[None]:
    """If Ctrl-C or SIGTERM stops an export, print what is kept and how to continue."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
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
