"""The quality report of recordings: one self-contained HTML file, and a JSON file for machines beside it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import robocache_ros
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.exported_recording import ExportedRecording, FailedRecording
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.report.exported_facts import report_document
from robocache_ros.export.report.overview import overview
from robocache_ros.export.report.recording_page import recording_page
from robocache_ros.export.report.summary import Summary, summaries, worst_first
from robocache_ros.extras import need

TEMPLATE = "report.html.j2"
SHOWN = 20  # recordings shown in full, the worst ones; the index lists all


def write_report(
    recordings: Sequence[ExportedRecording],
    out: Path,
    *,
    dataset: str | None = None,
    stored: Mapping[str, str] | None = None,
    failed: Sequence[FailedRecording] = (),
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the report of recordings, and its JSON document beside it with the ending .json.

    Args:
        recordings: the export results of the recordings.
        out: the HTML file; both files are written atomically.
        dataset: the name of the dataset, if one was made.
        stored: description of how the dataset stores each stream of images or voxels.
        failed: recordings that are not in the dataset.
        overwrite: replace a report in `out`.

    Returns:
        The JSON document.

    Errors:
        RoboCacheError: `out` exists, or cannot be written.
    """
    document_file = json_file(out)
    check_new(out, overwrite=overwrite)
    found = summaries(recordings)
    document = report_document(found, failed, dataset)
    with file_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        _replace(document_file, json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
        _replace(out, _html(found, dataset, stored or {}, failed, document))
    return document


def json_file(out: Path) -> Path:
    """Return the path of the JSON document of a report."""
    if out.suffix == ".json":
        raise RoboCacheError(f"{printable(out)}: is the name of the JSON document; give a name that ends in .html")
    return out.with_suffix(".json")


def check_new(out: Path, *, overwrite: bool) -> None:
    """Refuse to replace a report or its document, unless it is asked for."""
    for file in (out, json_file(out)):
        with file_errors(file):
            if file.is_dir() or (file.exists() and not overwrite):
                raise RoboCacheError(f"{printable(file)}: exists; choose another file, or replace it with --overwrite")


def _replace(out: Path, text: str) -> None:
    """Write a file atomically."""
    handle, draft = tempfile.mkstemp(out.suffix, ".robocache-report-", out.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            os.fchmod(handle, 0o644)
            file.write(text)
        os.replace(draft, out)
    except BaseException:
        os.unlink(draft)
        raise


def _html(
    found: Sequence[Summary],
    dataset: str | None,
    stored: Mapping[str, str],
    failed: Sequence[FailedRecording],
    document: Mapping[str, Any],
) -> str:
    jinja2 = need("jinja2", "export")
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    shown = sorted(worst_first(found)[:SHOWN], key=lambda one: one.index)
    first = found[0].recording
    return environment.get_template(TEMPLATE).render(  # type: ignore[no-any-return]
        title=printable(dataset or first.bag.name, 200),
        is_dataset=dataset is not None,
        pages=[recording_page(one) for one in shown],
        several=len(found) > 1,
        failed=[(printable(loss.bag.name, 200), printable(loss.reason, 400)) for loss in failed],
        spec=first.spec,
        visibility=first.visibility,
        lossy={name: how for name, how in stored.items() if how.endswith("lossy")},
        version=robocache_ros.__version__,
        **overview(found, {one.index for one in shown}, document["visibility_comparison"]),
    )
