"""`robocache check`: what a spec resolves to, and whether recordings match it."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robocache_ros.cli.options import AsJson, ManifestFile, Recordings, place, with_msg_path
from robocache_ros.cli.program import print_document

if TYPE_CHECKING:
    from robocache_ros.exporter.preview import Expected
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
    elif json:
        print_document("check", _spec_facts(loaded, spec))
    else:
        from robocache_ros.cli import tables

        tables.show(tables.spec_table(loaded))
        if loaded.dataset:
            tables.say(f"an export makes: {tables.changed_options(loaded.dataset)}")


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
    from robocache_ros.spec.dataset import DatasetOptions

    recordings = recordings_of(bags, manifest)
    options = replace(spec.dataset or DatasetOptions(), **given)
    spec = replace(spec, dataset=None)
    expected = [expect(each, spec, options, fuse=not fast) for each in tables.counted(recordings, "checking")]
    problems = export_output.problem_lines(expected)
    if json:
        content = {**_spec_facts(spec, path), "recordings": [export_output.expected_facts(e) for e in expected]}
        print_document("check", content, exit_code=int(bool(problems)), errors=problems)
    else:
        _show(expected)
        for line in problems:
            tables.complain(line)
    if problems:
        raise typer.Exit(1)


def _show(expected: Sequence["Expected"]) -> None:
    from robocache_ros.cli import export_output, tables

    if len(expected) == 1:
        tables.show(export_output.stream_table(expected[0]))
        if (result := expected[0].result) and result.left_out():
            tables.say(result.left_out())
    else:
        tables.show(export_output.recordings_table(expected))


def _spec_facts(spec: "FusionSpec", path: str) -> dict[str, object]:
    from robocache_ros.spec import Layout

    return {"spec_file": path, "spec": spec.to_dict(), "layout": Layout(spec).to_dict()}
