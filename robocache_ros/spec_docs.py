"""The reference page of the fusion spec, written from the keys' declarations: `python -m robocache_ros.spec_docs`."""

from __future__ import annotations

import sys
from dataclasses import MISSING, Field
from typing import Any

from robocache_ros import declare
from robocache_ros.spec import Extrinsic, FusionSpec, ImageSpec, Normalize, QosSpec, StreamSpec, VoxelSpec

SECTIONS: tuple[tuple[str, type], ...] = (
    ("The spec", FusionSpec),
    ("`streams.<name>`", StreamSpec),
    ("`streams.<name>.qos`", QosSpec),
    ("`streams.<name>.image`", ImageSpec),
    ("`streams.<name>.image.normalize`", Normalize),
    ("`streams.<name>.voxels`", VoxelSpec),
    ("`streams.<name>.voxels.extrinsic`", Extrinsic),
)

INTRODUCTION = """\
# The fusion spec

Every key that a fusion spec can have, with what it accepts and its default. This page is written by
`python -m robocache_ros.spec_docs` from the declarations in `robocache_ros/spec.py`, `streams.py` and `media_spec.py`.
`robocache check SPEC` shows a spec resolved; `robocache schema` prints the JSON schema for editors.
"""


def reference() -> str:
    """The page, in Markdown."""
    return "\n".join([INTRODUCTION, *(_section(title, cls) for title, cls in SECTIONS)])


def _section(title: str, cls: type) -> str:
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    lines = [f"## {title}", "", summary, "", "| key | accepts | default | meaning |", "|---|---|---|---|"]
    for name, field in declare.keys_of(cls).items():
        unit = f" [{field.metadata['unit']}]" if field.metadata["unit"] else ""
        accepts = field.metadata["kind"].label.replace("|", "\\|")
        lines.append(f"| `{name}` | {accepts}{unit} | {_default(field)} | {field.metadata['doc']} |")
    return "\n".join([*lines, ""])


def _default(field: Field[Any]) -> str:
    default = declare.default_of(field)
    if default is MISSING:
        return "**required**"
    if default in (None, "", ()) or (default == 0 and field.name in ("dim", "rate_hz")):
        return "-"
    if isinstance(default, QosSpec):
        return "see below"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


if __name__ == "__main__":
    sys.stdout.write(reference())
