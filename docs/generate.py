"""Writes the reference pages of the fusion spec and of the command line from their declarations: `make docs`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any

import typer.main

from robocache_ros.alignments import alignment, spec_alignments, units_of
from robocache_ros.cli.commands import app
from robocache_ros.cli.options import flags, help_line
from robocache_ros.exporter.options import ExportOptions
from robocache_ros.spec import (
    Extrinsic,
    FusionSpec,
    ImageSpec,
    Normalize,
    QosSpec,
    SpecQuality,
    StreamQuality,
    StreamSpec,
    VoxelSpec,
    keys,
)
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.run import OutputSpec, RunOptions

SECTIONS: tuple[tuple[str, type], ...] = (
    ("The spec", FusionSpec),
    ("`quality`", SpecQuality),
    ("`dataset`", DatasetOptions),
    ("`run`", RunOptions),
    ("`run.outputs.<stream>`", OutputSpec),
    ("`streams.<name>`", StreamSpec),
    ("`streams.<name>.quality`", StreamQuality),
    ("`streams.<name>.qos`", QosSpec),
    ("`streams.<name>.image`", ImageSpec),
    ("`streams.<name>.image.normalize`", Normalize),
    ("`streams.<name>.voxels`", VoxelSpec),
    ("`streams.<name>.voxels.extrinsic`", Extrinsic),
)

SPEC = """\
# The fusion spec

Every key of a fusion spec, with what it accepts and its default. `make docs` generates this page from the declarations
in `robocache_ros/spec/`.
`robocache check SPEC` shows a spec with its defaults resolved; `robocache schema` prints the JSON schema for editors.
"""

LIMITS = """\
An alignment that interpolates holds the sample before the tick if the neighbours are more than `max_gap_ms` apart, or
if there is none after the tick. No sample is held for longer than `max_age_ms`. A sample after the tick, which
`nearest` and `next` select, is at most `max_age_ms` away and has a negative age. On the robot a tick has only samples
that arrived within `delay_ms`: `next` is invalid at a tick whose next sample arrives later, or has the newest sample at
or before the tick with `on_invalid: hold`. [Actions](../explanation/actions.md) says when to use `next`.
[Design](../design.md#alignment) has the rules, and [Definitions](definitions.md) has the edge cases.

`window` is for sensors that are faster than the ticks: a tick uses all samples with a stamp after the last tick and not
after this one. They are `samples` rows of the fused row, the oldest first, padded with zeros at the end. If there are
more, the newest `samples` are used, and the others are counted as `window_overflow`. The age of each row's sample is in
the fused row too, -1 for padding. With `reduce` the samples become one row: their mean, root mean square, maximum or
minimum per column. A stream without a sample since the last tick is invalid. `max_gap_ms` and `max_age_ms` have no
effect.
"""


COMMANDS = """\
# The command line

Every command and option of `robocache`. `make docs` generates this page from the declarations. The options of a dataset
are also keys of the section [`dataset`](spec.md#dataset) of a spec, and all options of `export` but those marked with *
are keywords of `robocache_ros.export(recordings, spec, out, ...)`, under the names in the last column. An option of the
command line, or a keyword, comes before the key of the spec. `robocache COMMAND --help` has a line per option.
"""


def pages() -> dict[str, str]:
    """Return the generated pages in Markdown, by their names in docs/reference."""
    return {"spec.md": spec_page(), "commands.md": commands_page()}


def commands_page() -> str:
    """Return the page of the command line."""
    group = typer.main.get_command(app)
    return "\n".join([COMMANDS, *(line for name, command in _commands(group) for line in _command(name, command))])


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        full = f"{before} {name}".strip()
        yield from _commands(command, full) if hasattr(command, "commands") else [(full, command)]


def _command(name: str, command: Any) -> list[str]:
    words = " ".join((command.help or "").split())
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join(f"[{p.metavar or p.name.upper()}]" + "..." * (p.nargs == -1) for p in arguments)
    start = f"`robocache {name}{' ' * bool(usage)}{usage}`: {words}"
    lines = [f"## {name}", "", *textwrap.wrap(start, 119, break_long_words=False), ""]
    if options:
        last = (" key |", "---|") if name == "export" else ("", "")
        lines += [f"| option | default | meaning |{last[0]}", f"|---|---|---|{last[1]}"]
        lines += [_option(name, option) for option in options] + [""]
    return lines


def _option(command: str, option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    key = flags(ExportOptions).get(option.name)
    # A command's own option may have the name of another command's, as --overwrite has.
    if key is None or command.startswith("fleet") or option.help != help_line(key):
        shown = "**required**" if option.required else _shown(option.default)
        meaning, keyword = option.help, "*"
    else:
        unit = f", in {key.metadata['unit']}" if key.metadata["unit"] else ""
        accepts = key.metadata["type"].label
        shown = key.metadata["flag"].shown or _default(key)
        accepted = (
            ""
            if accepts in ("text", "true | false", "path or URL") or key.name == "msg_path"
            else f" ({accepts}{unit})"
        )
        meaning, keyword = f"{key.metadata['doc']}{accepted}", f"`{key.name}`"
    meaning = meaning.replace("|", "\\|").replace("<", "\\<")
    return f"| {names} | {shown} | {meaning} |" + (f" {keyword} |" if command == "export" else "")


def _shown(default: Any) -> str:
    return "-" if default in (None, "", (), [], False) or callable(default) else f"`{default}`"


def spec_page() -> str:
    """Return the page of the fusion spec."""
    return "\n".join([SPEC, *(_section(title, cls) for title, cls in SECTIONS), _alignments()])


def _alignments() -> str:
    """Return the table of alignments, generated from robocache_ros/alignments."""
    lines = ["## Alignments", "", "What `streams.<name>.align` accepts.", ""]
    lines += ["| align | value at a tick | values | default of |", "|---|---|---|---|"]
    for name in spec_alignments():
        each = alignment(name)
        group = f", {each.group} columns each" if each.group > 1 else ""
        unit = f" [{' or '.join(units_of(name))}]" if each.unit else ""
        kinds = ", ".join(f"{kind} streams" for kind in each.default_of) or "-"
        lines.append(f"| `{name}` | {each.meaning} | {each.values}{group}{unit} | {kinds} |")
    return "\n".join([*lines, "", LIMITS])


def _section(title: str, cls: type) -> str:
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    lines = [f"## {title}", "", summary, "", "| key | accepts | default | meaning |", "|---|---|---|---|"]
    for name, field in keys.keys_of(cls, in_files=True).items():
        unit = f" [{field.metadata['unit']}]" if field.metadata["unit"] else ""
        accepts = field.metadata["type"].label.replace("|", "\\|")
        lines.append(f"| `{name}` | {accepts}{unit} | {_default(field)} | {field.metadata['doc']} |")
    return "\n".join([*lines, ""])


def _default(field: Field[Any]) -> str:
    default = field.default
    if default is MISSING:
        return "**required**"
    if isinstance(default, tuple) and default:
        return f"`[{', '.join(default)}]`"
    if default in (None, "", ()) or (default == 0 and field.name in ("dim", "rate_hz", "samples")):
        return "-"
    if isinstance(default, QosSpec):
        return "see below"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


if __name__ == "__main__":
    for page, contents in pages().items():
        (Path(__file__).parent / "reference" / page).write_text(contents, encoding="utf-8")
