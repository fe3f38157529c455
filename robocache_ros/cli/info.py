"""`robocache info`: the topics of a recording, an overview over several, a first spec."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from robocache_ros.cli import options as given
from robocache_ros.cli.program import print_document
from robocache_ros.errors import RoboCacheError, printable


def info(
    bags: given.Recordings = None,
    write_spec: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it at run time
        typer.Option("--write-spec", help="Write a first spec for the recording to this file."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing spec.")] = False,
    topics: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads it at run time
        typer.Option("--topics", help="Topics of the spec: a name or a glob such as '/arm/*'; may be repeated."),
    ] = None,
    only: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads it at run time
        typer.Option(
            "--only", help="Streams of the spec: actions, clouds, images, joints, numbers or poses; may be repeated."
        ),
    ] = None,
    msg_path: given.MsgPath = None,
    json: given.AsJson = False,
) -> None:
    """Show the topics, types, rates and delays of a recording, or write a first spec for it.

    Of several recordings, show a line each.
    """
    from robocache_ros.cli.given_recordings import given_recordings

    if (topics or only) and not write_spec:
        option = "--topics" if topics else "--only"
        raise RoboCacheError(f"{option}: chooses the streams of a spec; add --write-spec FILE")
    if write_spec and write_spec.exists() and not overwrite:
        raise RoboCacheError(f"{printable(write_spec)}: already exists; choose another file, or give --overwrite")
    paths = [recording.path for recording in given_recordings(bags)]
    if len(paths) > 1 and write_spec:
        raise RoboCacheError(
            f"--write-spec: {len(paths)} recordings given; give one, whose topics are those of the spec"
        )
    if len(paths) > 1:
        _overview(paths, json)
        return
    _one(paths[0], write_spec, topics or [], only or [], msg_path or (), json)


def _one(
    path: Path,
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
        from robocache_ros.cli.info_output import facts

        if write_spec:
            _write(write_spec, text)
        print_document("info", {"recordings": [facts(described)], "wrote": write_spec, "warnings": warnings})
        return
    tables.show(tables.bag_table(described))
    if described.frames:
        tables.show(tables.frame_table(described.frames))
    tables.show_notes(described.notes)
    if described.integrity != UNCHECKED:  # most recordings have no checksums, which needs no action
        tables.say(f"integrity: {described.integrity}")
    if write_spec:
        _write(write_spec, text)
        tables.show_notes(warnings)
        spec = tables.argument(write_spec)
        given_too = "".join(f" --msg-path {tables.argument(folder)}" for folder in msg_path)
        tables.say(f"wrote {spec}; next: robocache export {tables.argument(path)} --spec {spec} --out DIR{given_too}")


def _overview(paths: Sequence[Path], json: bool) -> None:
    """Show a line per recording from the indexes of their files; exit with 1 if one cannot be read."""
    from robocache_ros.cli import tables
    from robocache_ros.cli.info_output import summary
    from robocache_ros.cli.program import lines_of

    rows: list[dict[str, Any]] = []
    errors: list[str] = []
    for path in paths:
        try:
            rows.append(summary(path))
        except RoboCacheError as error:
            errors += lines_of(error)
            rows.append({"path": path, "error": str(error)})
    if json:
        document = {"recordings": rows, "wrote": None, "warnings": ()}
        print_document("info", document, exit_code=int(bool(errors)), errors=errors)
    else:
        tables.show(tables.overview_table(rows))
        for line in errors:
            tables.complain(line)
    if errors:
        raise typer.Exit(1)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RoboCacheError(f"{printable(path)}: cannot be written ({reason}); choose another file") from None
