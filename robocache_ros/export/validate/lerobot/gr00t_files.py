"""The files that GR00T adds to LeRobot v2.1: meta/modality.json, and meta/stats.json in its form."""

from __future__ import annotations

from typing import Any

from robocache_ros.export.validate.column_statistics import compare
from robocache_ros.export.validate.exported_rows import ExportedRows
from robocache_ros.export.validate.findings import Findings, read_json
from robocache_ros.export.validate.lerobot.episode_rows import EpisodeRows
from robocache_ros.export.validate.lerobot.info_file import Info

MODALITY, STATS = "meta/modality.json", "meta/stats.json"
GR00T_STATS = ("mean", "std", "min", "max", "q01", "q99")
COLUMNS = {"state": "observation.state", "action": "action"}  # where the values are, unless original_key says otherwise


def check_gr00t_statistics(findings: Findings, info: Info, rows: EpisodeRows) -> None:
    """Compare meta/stats.json with the values, if it exists."""
    if not (findings.dataset / STATS).exists():
        return
    with findings.reading(STATS, AttributeError):
        stored = read_json(findings.dataset, STATS)
        values = rows.statistics()
        for key, told in stored.items():
            lacking = [name for name in GR00T_STATS if name not in told]
            findings.check(not lacking, STATS, f"{key} has no {', '.join(lacking)}: GR00T overwrites the file")
            if key in values:
                compare(findings, f"{STATS}: {key}", told, values[key], exact=info.own)
        for key, feature in info.features.items():
            if feature.dtype.startswith("float"):
                findings.check(key in stored, STATS, f"has no {key}: GR00T computes and overwrites the file")


def check_modality(findings: Findings, info: Info, exported: ExportedRows | None) -> None:
    """Check that meta/modality.json names columns and videos of the dataset, and each stream of an export."""
    if not (findings.dataset / MODALITY).exists():
        findings.skip(f"{MODALITY}: there is none; GR00T needs it")
        return
    with findings.reading(MODALITY, AttributeError, TypeError):
        modality = read_json(findings.dataset, MODALITY)
        for kind, column in COLUMNS.items():
            for name, part in modality.get(kind, {}).items():
                _check_part(findings, info, f"{kind}.{name}", part, part.get("original_key") or column)
            if exported is not None:
                _check_streams(exported, kind, modality.get(kind, {}))
        for name, part in modality.get("video", {}).items():
            key = part.get("original_key") or f"observation.images.{name}"
            findings.check(key in info.videos, MODALITY, f"video.{name}: {key} is not a video of the dataset")
        for name, part in (modality.get("annotation") or {}).items():
            key = part.get("original_key") or f"annotation.{name}"
            findings.check(key in info.features, MODALITY, f"annotation.{name}: {key} is not a column of the dataset")


def _check_streams(exported: ExportedRows, kind: str, parts: dict[str, Any]) -> None:
    """Check that each vector of an export has its columns."""
    start = 0
    for stream in exported.of_role("observation" if kind == "state" else "action"):
        part = parts.get(stream.name) or {}
        span = [part.get("start"), part.get("end")]
        exported.check_value(MODALITY, f"{kind}.{stream.name}", span, [start, start + stream.width])
        start += stream.width


def _check_part(findings: Findings, info: Info, name: str, part: dict[str, Any], column: str) -> None:
    feature = info.features.get(column)
    if feature is None:
        findings.add(MODALITY, f"{name}: {column} is not a column of the dataset")
        return
    start, end = part.get("start"), part.get("end")
    within = isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= feature.shape[0]
    text = f"{name}: {start} to {end} are not columns of {column}, which has {feature.shape[0]}"
    findings.check(within, MODALITY, text)
