"""A format is one module or folder. Its check uses nothing of its writer, and no format uses another."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import robocache_ros.formats
from robocache_ros.formats.registry import FORMATS

FOLDER = Path(robocache_ros.formats.__file__).parent


@cache
def parts() -> tuple[Path, ...]:
    return tuple(path for path in sorted(FOLDER.rglob("*.py")) if path.name != "__init__.py")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(FOLDER).with_suffix("").parts)


@cache
def imported(path: Path) -> tuple[str, ...]:
    """The modules of formats that a module imports, also in functions."""
    known, found = {name_of(each) for each in parts()}, list[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("robocache_ros.formats"):
            module = (node.module or "").removeprefix("robocache_ros.formats").lstrip(".")
            names = [f"{module}.{alias.name}".lstrip(".") for alias in node.names]
            found += [name if name in known else module for name in names]
    return tuple(found)


def modules_of(part: str) -> set[str]:
    """The modules that are only this part of a format."""
    return {getattr(each, part).partition(":")[0] for each in FORMATS.values() if "." in getattr(each, part)}


def reached(path: Path, name: str) -> set[str]:
    """What a function or constant of a module uses of this module."""
    defined: dict[str, set[str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        defined |= {getattr(each, "name", getattr(each, "id", "")): used for each in targets}
    seen, left = set[str](), {name}
    while left:
        seen |= left
        left = {used for each in left for used in defined[each] if used in defined} - seen
    return seen


def test_no_format_imports_another_and_what_they_share_imports_none() -> None:
    names = {each.write.partition(":")[0] or each.read.partition(":")[0] for each in FORMATS.values()}
    own = {name.partition(".")[0] for name in names}
    for path in parts():
        format_name = name_of(path).partition(".")[0]
        others = {module for module in imported(path) if module.partition(".")[0] in own - {format_name}}
        assert not others, name_of(path)


def test_checks_use_nothing_of_writers() -> None:
    checks, writers = modules_of("check"), modules_of("write")
    assert {"lerobot.check", "rlds.check", "delta.check"} == checks
    for path in parts():
        if name_of(path) in checks:
            assert not writers.intersection(imported(path)), name_of(path)
        elif name_of(path) in writers:
            assert not checks.intersection(imported(path)), name_of(path)
    for each in FORMATS.values():
        module, _, check = each.check.partition(":")
        if check and "." not in module:
            path = FOLDER / f"{module}.py"
            shared = reached(path, check) & reached(path, each.write.partition(":")[2])
            assert not [name for name in shared if re.search(r"Write|Dataset$|Format$", name)], module


def test_every_folder_is_registered() -> None:
    folders = {path.parent.name for path in parts() if path.parent != FOLDER}
    assert {each.write.partition(".")[0] for each in FORMATS.values() if "." in each.write} == folders


def test_readers_and_checks_decode_and_hash_through_the_modules_with_limits() -> None:
    # `file_limits` refuses parquet that claims too much, `dataset_folder` reads hard links once.
    parquet = r"parquet\W.*\.(?:ParquetFile|read_metadata|read_table|ParquetDataset)\b"
    direct = re.compile(rf"{parquet}|hashlib|import pickle$", re.MULTILINE)
    own = {getattr(each, part).partition(":")[0] for each in FORMATS.values() for part in ("read", "check")} - {""}
    texts = {name_of(path): path.read_text(encoding="utf-8") for path in parts() if name_of(path) in own}
    found = {name for name, text in texts.items() if direct.search(text)}
    assert found == {"delta.check"}  # compares the log of a table with the statistics in a footer
