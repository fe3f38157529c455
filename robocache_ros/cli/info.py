"""`robocache info`: the topics of a recording, an overview over several, a first spec."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robocache_ros.cli.options import AsJson, OptionalPath, OptionalTexts, Recordings, with_msg_path
from robocache_ros.cli.program import finish, print_document
from robocache_ros.errors import RoboCacheError
from robocache_ros.storage.new_files import check_new, write_new
from robocache_ros.storage.paths import AnyPath

if TYPE_CHECKING:
    from robocache_ros.bags.describe import BagInfo, FrameInfo, TopicInfo


@with_msg_path
def info(
    given: dict[str, Any],
    bags: Recordings = None,
    write_spec: Annotated[
        OptionalPath, typer.Option("--write-spec", help="Write a first spec for the recording to this file.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing spec.")] = False,
    topics: Annotated[
        OptionalTexts,
        typer.Option("--topics", help="Topics of the spec: a name or a glob such as '/arm/*'; may be repeated."),
    ] = None,
    only: Annotated[
        OptionalTexts,
        typer.Option(
            "--only", help="Streams of the spec: actions, clouds, images, joints, numbers or poses; may be repeated."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Show the topics, types, rates and delays of a recording, or write a first spec for it.

    Of several recordings, show a line each.
    """
    from robocache_ros.exporter.recordings import recordings_of

    if (topics or only) and not write_spec:
        option = "--topics" if topics else "--only"
        raise RoboCacheError(f"{option}: chooses the streams of a spec; add --write-spec FILE")
    check_new(write_spec, overwrite=overwrite)
    paths = [recording.path for recording in recordings_of(bags)]
    if len(paths) > 1 and write_spec:
        raise RoboCacheError(
            f"--write-spec: {len(paths)} recordings given; give one, whose topics are those of the spec"
        )
    if len(paths) > 1:
        _overview(paths, json)
        return
    _one(paths[0], write_spec, topics or [], only or [], given.get("msg_path", ()), json)


def _one(
    path: AnyPath,
    write_spec: Path | None,
    topics: Sequence[str],
    only: Sequence[str],
    msg_path: Sequence[str],
    json: bool,
) -> None:
    from robocache_ros.bags.describe import describe
    from robocache_ros.bags.reader import UNCHECKED
    from robocache_ros.cli import tables

    described = describe(path, msg_path)
    warnings: tuple[str, ...] = ()
    if write_spec:
        from robocache_ros.bags.suggest.first_spec import first_spec

        text, warnings = first_spec(described, topics, only)
    if json:
        if write_spec:
            write_new(write_spec, text)
        print_document("info", {"recordings": [_facts(described)], "wrote": write_spec, "warnings": warnings})
        return
    tables.show(tables.bag_table(described))
    if described.frames:
        tables.show(tables.frame_table(described.frames))
    tables.show_notes(described.notes)
    if described.integrity != UNCHECKED:  # most recordings have no checksums, which needs no action
        tables.say(f"integrity: {described.integrity}")
    if write_spec:
        write_new(write_spec, text)
        tables.show_notes(warnings)
        spec = tables.argument(write_spec)
        given_too = "".join(f" --msg-path {tables.argument(folder)}" for folder in msg_path)
        tables.say(f"wrote {spec}; next: robocache export {tables.argument(path)} --spec {spec} --out DIR{given_too}")


def _overview(paths: Sequence[AnyPath], json: bool) -> None:
    """Show a line per recording from the indexes of their files; exit with 1 if one cannot be read."""
    from robocache_ros.cli import tables
    from robocache_ros.cli.program import lines_of

    rows: list[dict[str, Any]] = []
    errors: list[str] = []
    for path in paths:
        try:
            rows.append(_summary(path))
        except RoboCacheError as error:
            errors += lines_of(error)
            rows.append({"path": path, "error": str(error)})

    def show() -> None:
        tables.show(tables.overview_table(rows))
        for line in errors:
            tables.complain(line)

    content = {"recordings": rows, "wrote": None, "warnings": ()}
    finish("info", content, show, json=json, code=int(bool(errors)), errors=errors)


# What --json states about a recording.

# Of a topic, what a few chunks do not tell.
_NOT_SAMPLED = ("size_bytes", "lost", "longest_gap_ms", "gaps", "duplicates", "out_of_order")


def _summary(path: AnyPath) -> dict[str, Any]:
    """Return what the index of a recording states, without reading its messages."""
    from robocache_ros.bags.reader import Bag

    with Bag(path) as bag:
        return {
            **_extent(bag.path, sum(file.stat().st_size for file in bag.files), bag.start_ns, bag.stop_ns),
            "integrity": bag.integrity,
            "notes": bag.notes,
            "topics": [{"name": t.name, "type": t.type, "messages": t.count} for t in bag.topics.values()],
        }


def _facts(info: "BagInfo") -> dict[str, Any]:
    """Return the description of a recording whose messages were read."""
    return {
        **_extent(info.path, info.size, info.start_ns, info.stop_ns),
        "integrity": info.integrity,
        "notes": info.notes,
        "topics": [
            _topic(name, topic) | (dict.fromkeys(_NOT_SAMPLED) if info.is_sampled else {})
            for name, topic in info.topics.items()
        ],
        "frames": [_frame(name, frame) for name, frame in info.frames.items()],
    }


def _extent(path: AnyPath, size: int, start_ns: int, stop_ns: int) -> dict[str, Any]:
    span = {"start_ns": start_ns, "stop_ns": stop_ns, "duration_s": (stop_ns - start_ns) / 1e9}
    return {"path": path, "size_bytes": size, **span}


def _topic(name: str, topic: "TopicInfo") -> dict[str, Any]:
    stats = topic.stats
    quantiles = (("median", 0.5), ("p99", 0.99), ("max", 1.0))
    return {
        "name": name,
        "type": stats.type,
        "messages": stats.count,
        "size_bytes": stats.size,
        "content": topic.content,
        "not_finite": topic.not_finite,
        "start_ns": stats.start_ns,
        "stop_ns": stats.stop_ns,
        "rate_hz": stats.rate_hz,
        "period_ms": stats.period_ms,
        "jitter_ms": stats.jitter_ms,
        "lost": stats.missing,
        "longest_gap_ms": stats.longest_gap_ms,
        "gaps": [{"start_ns": gap.start_ns, "length_ms": gap.length_ns / 1e6} for gap in stats.gaps],
        "duplicates": stats.duplicates,
        "out_of_order": stats.out_of_order,
        "stamps": stats.clock.kind,
        "delay_ms": {key: stats.delay_ms(share) for key, share in quantiles} if stats.stamped else None,
    }


def _frame(name: str, frame: "FrameInfo") -> dict[str, Any]:
    return {
        "name": name,
        "parent": frame.parent,
        "topic": frame.topic,
        "static": frame.is_static,
        "moves": frame.moves,
        "rate_hz": frame.rate_hz or None,
        "changes_of_parent": frame.parents - 1,
    }
