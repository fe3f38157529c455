"""JSON files of a dataset."""

from __future__ import annotations

import json
from typing import Any

from robocache_ros.datasets.episode_source import DatasetError
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.text_file import read_text
from robocache_ros.untrusted_files import DatasetFile

JSON_BYTES = 256 << 20  # of the lines that list the episodes of a large dataset


def read_object(path: DatasetFile) -> dict[str, Any]:
    """Return the object in a JSON file.

    Errors:
        DatasetError: the file is missing, too large, or not a JSON object.
    """
    return parse_object(_text(path), printable(path))


def read_objects(path: DatasetFile) -> list[dict[str, Any]]:
    """Return the objects in a file with one JSON object per line.

    Errors:
        DatasetError: the file is missing or too large, or a line is not a JSON object.
    """
    lines = enumerate(_text(path).splitlines(), start=1)
    return [parse_object(line, f"{printable(path)}: line {number}") for number, line in lines if line.strip()]


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Return a JSON object.

    Errors:
        DatasetError: the text is not one.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{where}: not JSON ({printable(error, 60)}); get the file again") from None
    if not isinstance(found, dict):
        raise DatasetError(f"{where}: not a JSON object; get the file again")
    return found


def _text(path: DatasetFile) -> str:
    try:
        return read_text(path, "get the file again", JSON_BYTES)
    except RoboCacheError as error:
        raise DatasetError(str(error)) from None
