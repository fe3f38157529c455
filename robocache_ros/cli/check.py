"""`robocache check`, `report` and `validate`: whether a spec, recordings and datasets are as they should be."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robocache_ros.cli.options import (
    AsJson,
    ManifestFile,
    Recording,
    Recordings,
    SpecFile,
    place,
    with_msg_path,
    with_options,
)
from robocache_ros.cli.program import finish
from robocache_ros.errors import number_of, printable
from robocache_ros.spec.dataset import DatasetOptions

if TYPE_CHECKING:
    from robocache_ros.exporter.preview import Expected
    from robocache_ros.formats.check import Findings
    from robocache_ros.spec import FusionSpec


@with_msg_path
def check(
    spec: Annotated[str, typer.Argument(parser=place, metavar="SPEC", help="The fusion spec (YAML), or its URL.")],
    given: dict[str, Any],
    bags: Recordings = None,
    manifest: ManifestFile = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Compare topics, joints and fields alone; do not read all messages.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Check a spec; print every error in it, or each stream with its defaults and its columns in the fused tensor.

    With recordings: whether their topics, joints and fields match, and the validity and episodes to expect. The exit
    code is 1 if a recording does not match.
    """
    from robocache_ros.spec import load_spec

    loaded = load_spec(spec)
    if bags or manifest:
        _recordings(loaded, spec, bags, manifest, fast, given, json)
    else:
        finish("check", _spec_facts(loaded, spec), partial(_show_spec, loaded), json=json)


def _show_spec(spec: "FusionSpec") -> None:
    from robocache_ros.cli import tables

    tables.show(tables.spec_table(spec))
    if spec.dataset:
        tables.say(f"an export makes: {tables.changed_options(spec.dataset)}")


def _recordings(
    spec: "FusionSpec",
    path: str,
    bags: list[str] | None,
    manifest: str | None,
    fast: bool,
    given: dict[str, Any],
    json: bool,
) -> None:
    from robocache_ros.cli import export_output, tables
    from robocache_ros.exporter.preview import expect
    from robocache_ros.exporter.recordings import recordings_of

    recordings = recordings_of(bags, manifest)
    options = replace(spec.dataset or DatasetOptions(), **given)
    spec = replace(spec, dataset=None, run=None)
    expected = [expect(each, spec, options, fuse=not fast) for each in tables.counted(recordings, "checking")]
    problems = export_output.problem_lines(expected)
    content = {**_spec_facts(spec, path), "recordings": [export_output.expected_facts(e) for e in expected]}
    show = partial(_show, expected, problems)
    finish("check", content, show, json=json, code=int(bool(problems)), errors=problems)


def _show(expected: Sequence["Expected"], problems: Sequence[str]) -> None:
    from robocache_ros.cli import export_output, tables

    if len(expected) == 1:
        tables.show(export_output.stream_table(expected[0]))
        if (result := expected[0].result) and result.left_out():
            tables.say(result.left_out())
    else:
        tables.show(export_output.recordings_table(expected))
    for line in problems:
        tables.complain(line)


def _spec_facts(spec: "FusionSpec", path: str) -> dict[str, object]:
    from robocache_ros.spec import Layout

    return {"spec_file": path, "spec": spec.to_dict(), "layout": Layout(spec).to_dict()}


@with_options(DatasetOptions, "visibility", "compare_visibility", "msg_path")
def report(
    bag: Recording,
    spec: SpecFile,
    given: dict[str, Any],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write; its JSON document has the ending .json.")
    ] = Path("report.html"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    json: AsJson = False,
) -> None:
    """Write the quality report of a recording, without a dataset."""
    from robocache_ros.cli import tables
    from robocache_ros.cli.progress import shown_progress
    from robocache_ros.exporter.job import summarize
    from robocache_ros.exporter.report import json_file, write_report
    from robocache_ros.spec import load_spec
    from robocache_ros.storage.new_files import check_new

    check_new(out, json_file(out), overwrite=overwrite)
    loaded = load_spec(spec)
    with shown_progress() as progress:
        recording = summarize(bag, loaded, progress=progress, **given)
    document = write_report([recording], out, overwrite=overwrite)
    content = {"wrote": out, "wrote_json": json_file(out), **document}
    finish("report", content, lambda: tables.say(f"wrote {out} and {json_file(out)}"), json=json)


def validate(
    datasets: Annotated[list[Path], typer.Argument(help="Folders or files of datasets, of any of the formats.")],
    decode: Annotated[
        bool, typer.Option("--decode", help="Decode every image; otherwise the frames of videos are counted.")
    ] = False,
    recordings: Annotated[
        bool, typer.Option("--recordings", help="Compare the recordings that the dataset was exported from.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Read every file of a dataset and print what is wrong with it, one line each; exit code 1 if anything is."""
    from robocache_ros.formats.validate import validate as read_all

    checked = [found for dataset in datasets for found in read_all(dataset, decode=decode, recordings=recordings)]
    lines = [str(finding) for findings in checked for finding in findings.found]
    content = {"datasets": [findings.to_dict() for findings in checked]}
    finish("validate", content, partial(_show_findings, checked), json=json, code=int(bool(lines)), errors=lines)


def _show_findings(checked: Sequence["Findings"]) -> None:
    for findings in checked:
        for finding in findings.found:
            typer.echo(str(finding))
        if findings.more:
            typer.echo(f"and {findings.more:,} more findings")
        for text in findings.unchecked:
            typer.echo(f"not checked: {text}")
        counts = ", ".join(f"{n:,} {name if n != 1 else name[:-1]}" for name, n in findings.counted.items())
        total = len(findings.found) + findings.more
        outcome = number_of(total, "finding") if total else "nothing wrong found"
        typer.echo(f"{printable(findings.dataset.name)}: {findings.title}: {outcome}; checked {counts or 'nothing'}")
