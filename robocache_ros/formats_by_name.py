"""Formats found by name: those in a table of this package, and those of other packages through entry points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from robocache_ros.errors import RoboCacheError, printable


@dataclass(frozen=True)
class FormatsByName:
    """The formats of one kind.

    Args:
        what: name of the option that chooses one, for errors.
        table: format -> module:attribute, imported on first use.
        group: of the entry points.
    """

    what: str
    table: Mapping[str, str]
    group: str

    def names(self) -> tuple[str, ...]:
        """Return the names of all formats, those of other packages last."""
        others = {point.name for point in entry_points(group=self.group)}
        return (*self.table, *sorted(others - set(self.table)))

    def load(self, name: str) -> Any:
        """Import a format.

        Errors:
            RoboCacheError: there is no such format, or the package that has it cannot be imported.
        """
        if name in self.table:
            module, _, attribute = self.table[name].partition(":")
            return getattr(import_module(module), attribute)
        points = [point for point in entry_points(group=self.group) if point.name == name]
        if not points:
            known = printable(", ".join(self.names()), 120)
            raise RoboCacheError(f"{self.what}: {printable(name, 40)!r} is not one of {known}; choose one of them")
        try:
            return points[0].load()
        except Exception as error:
            where = printable(points[0].value, 60)
            raise RoboCacheError(
                f"{self.what}: {name} of {where} cannot be imported ({printable(error, 60)}); reinstall it"
            ) from error
