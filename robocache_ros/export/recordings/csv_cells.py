"""Splits CSV text (RFC 4180, with commas) into cells that know their position, for exact error messages."""

from __future__ import annotations

import re
from typing import NamedTuple

from robocache_ros.errors import RoboCacheError

MAX_CELL = 8192  # characters

_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_PLAIN = re.compile(r'[^",\r\n]*')
_END = re.compile(r"\r\n|\n|\r|\Z")


class CsvError(RoboCacheError):
    """Text that is not CSV within the limits; `line` and `column` count from 1."""

    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(message)
        self.line, self.column = line, column


class Cell(NamedTuple):
    """The text of a cell without its quotes; `line` and `column` count from 1."""

    text: str
    line: int
    column: int


def split_cells(text: str) -> list[list[Cell]]:
    """Return the cells of each row; empty lines are left out.

    Errors:
        CsvError: a quote is not closed or not at the start of a cell, or a cell is longer than MAX_CELL.
    """
    rows: list[list[Cell]] = []
    row: list[Cell] = []
    at = begun = 0  # position in the text, and of the start of its line
    line = 1
    while at < len(text) or row:
        column = at - begun + 1
        match = _QUOTED.match(text, at) or _PLAIN.match(text, at)
        assert match
        value = match[1].replace('""', '"') if match.re is _QUOTED else match[0].strip()
        if len(value) > MAX_CELL:
            raise CsvError(line, column, f"a cell of {len(value):,} characters; use at most {MAX_CELL:,}")
        row.append(Cell(value, line, column))
        if "\n" in match[0]:
            line += match[0].count("\n")
            begun = match.start() + match[0].rfind("\n") + 1
        at = match.end()
        if text.startswith(",", at):
            at += 1
            continue
        end = _END.match(text, at)
        if not end:
            raise CsvError(
                line,
                at - begun + 1,
                'a quote that is not closed, or is inside a cell; quote the whole cell, and write " in it as ""',
            )
        if len(row) > 1 or row[0].text:
            rows.append(row)
        row, at, line, begun = [], end.end(), line + 1, end.end()
    return rows
