"""`ros2 robocache`: the commands of `robocache` as verbs of ros2cli.

ros2cli finds the command and its verbs by the entry points of setup.py, one verb for each command. Arguments and help
are those of `robocache`: a verb hands over all that follows it. `from robocache_ros.cli.ros2 import info` gives the
verb `info`, because ros2cli keeps one object for each class.
"""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser, Namespace
from functools import cache
from typing import Any

import typer.main
from ros2cli.command import CommandExtension, add_subparsers_on_demand
from ros2cli.plugin_system import PLUGIN_SYSTEM_VERSION, satisfies_version

from robocache_ros import programs
from robocache_ros.cli import commands

GROUP = "robocache_ros.verb"  # of the entry points


class RobocacheCommand(CommandExtension):  # type: ignore[misc]  # ros2cli has no types
    """Fuse topics to tensors, and export recordings as datasets."""

    def add_arguments(self, parser: ArgumentParser, cli_name: str, *, argv: list[str] | None = None) -> None:
        """Add the verbs."""
        self._parser = parser
        add_subparsers_on_demand(parser, cli_name, "_verb", GROUP, required=False, argv=argv)

    def main(self, *, parser: ArgumentParser, args: Namespace) -> int:
        """Run the verb; without one, print the help."""
        verb = getattr(args, "_verb", None)
        if verb is None:
            self._parser.print_help()
            return 0
        return int(verb.main(args=args))


class Verb:
    """A command of `robocache`, named like the verb."""

    NAME = ""  # set by ros2cli
    EXTENSION_POINT_VERSION = "0.1"

    def __init__(self) -> None:
        satisfies_version(PLUGIN_SYSTEM_VERSION, "^0.1")

    def add_arguments(self, parser: ArgumentParser, cli_name: str) -> None:
        """Take all that follows the verb, also what begins with `-`."""
        parser.prefix_chars = ""
        taken: Any = parser.add_argument("arguments", nargs=REMAINDER)
        taken.completer = lambda prefix, parsed_args, **_: complete([self.NAME, *parsed_args.arguments], prefix)

    def main(self, *, args: Namespace) -> int:
        """Run the command; returns its exit code."""
        arguments = [self.NAME, *args.arguments]
        return programs.run("robocache", lambda: commands.main(arguments, program="ros2 robocache"))


def __getattr__(name: str) -> type[Verb]:
    command = _application().commands.get(name.replace("_", "-"))
    if command is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return type(name, (Verb,), {"__doc__": command.help})


def complete(words: list[str], prefix: str) -> list[str]:
    """The options, sub-commands or values of an option with which a word that begins with `prefix` can be completed."""
    command, last = _application(), ""
    for last in words:
        command = getattr(command, "commands", {}).get(last, command)
    options = {name: param for param in command.params for name in (*param.opts, *param.secondary_opts)}
    if last in options and not getattr(options[last], "is_flag", False):
        context = command.context_class(command, resilient_parsing=True)
        found = [item.value for item in options[last].shell_complete(context, prefix)]
    elif prefix.startswith("-"):
        found = [name for name in options if name.startswith("--")]
    else:
        found = [*getattr(command, "commands", ())]
    return [word for word in found if word.startswith(prefix)]


@cache
def _application() -> Any:
    return typer.main.get_command(commands.app)
