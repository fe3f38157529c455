"""`robocache calibrate`: latencies of cameras and actions and the drift of clocks, and a patch of the spec."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robocache_ros.cli.options import (
    AsJson,
    OptionalPath,
    OptionalText,
    SpecOfRecording,
    place,
    spec_of_recording,
    with_msg_path,
)
from robocache_ros.cli.program import finish
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.storage.new_files import check_new, write_new

if TYPE_CHECKING:
    from rich.table import Table

    from robocache_ros.bags.calibrate import Calibration, Measurement


@with_msg_path
def calibrate(
    given: dict[str, Any],
    recording: Annotated[
        OptionalText,
        typer.Argument(
            parser=place,
            metavar="BAG|RUN",
            help="A recording, or a run log, of a robot that moves; or its URL.",
            show_default=False,
        ),
    ] = None,
    spec: SpecOfRecording = None,
    joints: Annotated[
        str, typer.Option("--joints", metavar="STREAM", help="The stream of positions; else the largest joint states.")
    ] = "",
    write: Annotated[
        OptionalPath,
        typer.Option("--write", metavar="PATCH", help="Write the keys to merge into the spec to this YAML file."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    qr: Annotated[
        bool, typer.Option("--qr", help="Measure cameras that saw the page of --qr-page, against its clock.")
    ] = False,
    qr_page: Annotated[
        OptionalPath,
        typer.Option("--qr-page", metavar="PAGE", help="Write a page that shows the clock as QR codes, and end."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure the latency of cameras and actions from the motion in a recording, and the drift of clocks.

    Exit code 1: nothing could be measured. A spec is never changed.
    """
    from robocache_ros.bags.calibrate import FrameReader
    from robocache_ros.bags.calibrate import calibrate as measure
    from robocache_ros.bags.reader import Bag

    check_new(write, qr_page, overwrite=overwrite)
    if qr_page:
        from robocache_ros.bags.qr_clock import page

        write_new(qr_page, page())
        finish("calibrate", {"wrote": qr_page}, partial(_show_page, qr_page), json=json)
        return
    if recording is None:
        raise RoboCacheError("calibrate: the recording is missing; give a BAG, or --qr-page PAGE")
    msg_path = given.get("msg_path", ())
    reader = FrameReader
    if qr:
        from robocache_ros.bags.qr_clock import CodeReader

        reader = CodeReader
    loaded = spec_of_recording(recording, spec, msg_path)
    with Bag(recording, msg_path=msg_path) as bag:
        found = measure(bag, loaded, joints, reader)
    patch = _text(found, recording) if found.patch() else ""
    if write and patch:
        write_new(write, patch)
    wrote = write if patch else None
    nothing = all(m.refused for m in found.measurements)
    why = "see the reasons above" if found.measurements else "the spec has no camera or action, and the stamps no drift"
    errors = [f"{printable(recording, 80)}: nothing could be measured; {why}"] if nothing else []
    content = {
        "recording": recording,
        "measurements": [asdict(m) for m in found.measurements],
        "patch": found.patch(),
        "wrote": wrote,
        "notes": found.notes,
    }
    show = partial(_show, found, recording, patch, wrote, errors)
    finish("calibrate", content, show, json=json, code=int(nothing), errors=errors)


def _text(found: "Calibration", recording: str) -> str:
    import yaml

    head = f"# Measured by `robocache calibrate` from {printable(recording, 80)}. Merge these keys into the spec.\n"
    return head + yaml.safe_dump(found.patch(), sort_keys=False, allow_unicode=True)


def _show_page(path: Path) -> None:
    from robocache_ros.cli import tables

    shown = tables.argument(path)
    tables.say(f"wrote {shown}; open it in a browser before the camera, record, then: robocache calibrate BAG --qr")


def _show(found: "Calibration", recording: str, patch: str, wrote: Path | None, errors: Sequence[str]) -> None:
    from robocache_ros.cli import tables

    if found.measurements:
        tables.show(_table(found.measurements, recording))
    for m in found.measurements:
        if m.refused:
            tables.show_notes([f"{m.name}: {m.quantity.replace('_', ' ')} not measured: {m.refused}"])
    tables.show_notes(found.notes)
    if patch:
        tables.say(patch.rstrip())
        tables.say(f"wrote {tables.argument(wrote)}" if wrote else "--write PATCH.yaml writes these keys to a file")
    for line in errors:
        typer.echo(f"robocache: {line}", err=True)


def _table(measurements: Sequence["Measurement"], recording: str) -> "Table":
    from rich.markup import escape

    from robocache_ros.cli import tables

    table = tables.plain_table(
        printable(recording, 80),
        ("quantity", "of", "against"),
        ("value", "90 % interval", "r", "samples", "in the spec"),
    )
    for m in measurements:
        is_known = not m.refused
        digits = 1 if m.unit == "ms" else 2
        table.add_row(
            m.quantity.replace("_", " "),
            escape(printable(m.name, 60)),
            escape(printable(m.against, 60)),
            f"{m.value:.{digits}f} {m.unit}" if is_known else "-",
            f"{m.low:.{digits}f} to {m.high:.{digits}f}" if is_known else "-",
            f"{m.correlation:.2f}" if m.correlation == m.correlation else "-",
            str(m.samples) if is_known else "-",
            "-" if m.current is None else f"{m.current:g} {m.unit}",
        )
    return table
