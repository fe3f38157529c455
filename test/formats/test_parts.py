"""A format is one folder: a schema that its writer, its reader and its check share, and nothing of another format."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import robocache_ros.formats
from robocache_ros.formats.registry import FORMATS

FOLDER = Path(robocache_ros.formats.__file__).parent
PARTS = ("write", "read", "check", "append")  # and what begins so, as check_v3
# Writes what a dataset of Delta Lake consists of, and then adds it to another one.
ALLOWED = {("delta.append", "delta.write")}


@cache
def parts() -> tuple[Path, ...]:
    return tuple(path for path in sorted(FOLDER.rglob("*.py")) if path.name != "__init__.py")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(FOLDER).with_suffix("").parts)


@cache
def imported(path: Path) -> tuple[str, ...]:
    """The modules of formats that a module imports, also in functions."""
    return tuple(_imported(path, {name_of(each) for each in parts()}))


def _imported(path: Path, known: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("robocache_ros.formats"):
            module = (node.module or "").removeprefix("robocache_ros.formats").lstrip(".")
            for alias in node.names:
                whole = f"{module}.{alias.name}".lstrip(".")
                yield whole if whole in known else module


def part(module: str) -> str:
    """Which part of its format a module is; empty: what the parts share."""
    last = module.rpartition(".")[2].partition("_")[0]
    return last if "." in module and last in PARTS else ""


def test_no_format_imports_another_and_what_they_share_imports_none() -> None:
    for path in parts():
        folder = name_of(path).rpartition(".")[0]
        others = {module for module in imported(path) if module.rpartition(".")[0] not in ("", folder)}
        assert not others, name_of(path)


def test_writers_readers_and_checks_share_the_schema_and_not_each_other() -> None:
    for path in parts():
        for module in imported(path):
            name = name_of(path)
            if part(name) and part(module) != part(name):
                assert not part(module) or (name, module) in ALLOWED, f"{name} imports {module}"
            if name.endswith("schema"):
                assert not part(module), f"{name} imports {module}"


def test_every_folder_is_registered() -> None:
    folders = {path.parent.name for path in parts() if path.parent != FOLDER}
    assert {each.folder or each.name for each in FORMATS.values()} == folders


def test_readers_and_checks_decode_and_hash_through_the_modules_with_limits() -> None:
    # `file_limits` refuses parquet that claims too much, `checksums` reads hard links once.
    direct = re.compile(
        r"parquet\W.*\.(?:ParquetFile|read_metadata|read_table|ParquetDataset)\b|hashlib|import pickle$", re.M
    )
    found = {
        name_of(path)
        for path in parts()
        if part(name_of(path)) in ("read", "check") and direct.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"delta.check"}  # compares the log of a table with the statistics in a footer
