"""`robocache check`: what a spec resolves to, and whether recordings match it."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

from pathlib import Path
from typing import Annotated

import typer

from robocache_ros.cli import option_types as given


def check(
    spec: Annotated[Path, typer.Argument(help="The fusion spec (YAML).")],
    bags: given.Recordings = None,
    manifest: given.ManifestFile = None,
    json: given.AsJson = False,
) -> None:
    """Check a spec; print every error in it, or each stream with its defaults and its columns in the fused tensor."""
    from robocache_ros.cli import tables
    from robocache_ros.spec import load_spec

    tables.show(tables.spec_table(load_spec(spec)))
