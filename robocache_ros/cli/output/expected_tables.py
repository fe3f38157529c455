"""What `check` and `export --dry-run` print about recordings before an export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from robocache_ros.cli.output import tables
from robocache_ros.errors import number_of, printable
from robocache_ros.export.preview.expected import Expected
from robocache_ros.export.report.exported_facts import recording_facts, shares

LINES = 20  # problems that are listed
_NAMED = 2  # recordings that are named with a problem


def stream_table(expected: Expected) -> Table:
    """Return the table of one recording, a row per stream: its messages, and the validity to expect."""
    result = expected.result
    table = tables.plain_table(f"{printable(expected.path, 100)}{_episodes_of(expected)}")
    for name in ("stream", "topic"):
        table.add_column(name, no_wrap=True)
    for name in ("messages", "aligned", "held", "invalid"):
        table.add_column(name, justify="right", no_wrap=True)
    known = shares(result.valid, result.spec) if result else {}
    for stream in expected.streams:
        row = known.get(stream.stream, {})
        cells = [tables.percent(row[state]) if row else "" for state in ("aligned", "held", "invalid")]
        mark = "[red]does not match[/]" if stream.problems else ""
        table.add_row(stream.stream, escape(stream.topic), str(stream.messages), *([mark, "", ""] if mark else cells))
    return table


def recordings_table(all_expected: Sequence[Expected]) -> Table:
    """Return the table of several recordings, a row each."""
    matching = sum(not expected.problems for expected in all_expected)
    match = "matches" if len(all_expected) == 1 else "match"
    table = tables.plain_table(f"{matching} of {number_of(len(all_expected), 'recording')} {match}")
    table.add_column("recording", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("streams", justify="right", no_wrap=True)
    for name in ("episodes", "frames", "kept"):
        table.add_column(name, justify="right", no_wrap=True)
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
            bare = problem.removeprefix(f"{expected.path}: ").removeprefix(f"{where}: ")
            found.setdefault(bare, []).append(where)
    lines = []
    for problem, names in list(found.items())[:LINES]:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        lines.append(f"{', '.join(names[:_NAMED])}{more}: {problem}")
    return lines + [f"and {number_of(len(found) - LINES, 'more problem')}"] * (len(found) > LINES)


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
    total = f"{result.frames} of {number_of(len(result.ticks_ns), 'tick')}"
    return f" · {result.duration_s:.1f} s · {total} in {number_of(len(result.episodes), 'episode')}"
