"""Check LeRobot datasets v2.1, with the files of GR00T."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from robocache_ros.errors import printable
from robocache_ros.file_limits import read_table
from robocache_ros.formats.check import ExportedRows, Findings, compare, file_in, read_json, read_lines
from robocache_ros.formats.lerobot import schema
from robocache_ros.formats.lerobot.check import Info, LeRobotCheck, LeRobotRows, Span, check_norm_stats, check_video
from robocache_ros.formats.schema import ACTION, IMAGES, STATE

COLUMNS = {"state": STATE, "action": ACTION}  # where the values are, unless original_key says otherwise


def check_gr00t_statistics(findings: Findings, rows: LeRobotRows) -> None:
    """Compare meta/stats.json with the values, if it exists."""
    if not (findings.dataset / schema.STATS).exists():
        return
    with findings.reading(schema.STATS):
        stored = read_json(findings.dataset, schema.STATS)
        info, values = rows.info, rows.statistics()
        for key, stated in stored.items():
            lacking = [name for name in schema.GR00T_STATS if name not in stated]
            findings.check(not lacking, schema.STATS, f"{key} has no {', '.join(lacking)}: GR00T overwrites the file")
            if key in values:
                compare(findings, f"{schema.STATS}: {key}", stated, values[key], exact=info.own)
        for key, feature in info.features.items():
            if feature.dtype.startswith("float"):
                findings.check(key in stored, schema.STATS, f"has no {key}: GR00T computes and overwrites the file")


def check_modality(findings: Findings, info: Info, exported: ExportedRows | None) -> None:
    """Check that meta/modality.json names columns and videos of the dataset, and each stream of an export."""
    if not (findings.dataset / schema.MODALITY).exists():
        findings.skip(f"{schema.MODALITY}: there is none; GR00T needs it")
        return
    with findings.reading(schema.MODALITY):
        modality = read_json(findings.dataset, schema.MODALITY)
        for kind, column in COLUMNS.items():
            for name, part in modality.get(kind, {}).items():
                _check_part(findings, info, f"{kind}.{name}", part, part.get("original_key") or column)
            if exported is not None:
                _check_streams(exported, kind, modality.get(kind, {}))
        for name, part in modality.get("video", {}).items():
            key = part.get("original_key") or IMAGES + name
            findings.check(key in info.videos, schema.MODALITY, f"video.{name}: {key} is not a video of the dataset")
        for name, part in (modality.get("annotation") or {}).items():
            key = part.get("original_key") or f"annotation.{name}"
            findings.check(
                key in info.features, schema.MODALITY, f"annotation.{name}: {key} is not a column of the dataset"
            )


def _check_streams(exported: ExportedRows, kind: str, parts: dict[str, Any]) -> None:
    """Check that each vector of an export has its columns."""
    start = 0
    for stream in exported.of_role("observation" if kind == "state" else "action"):
        part = parts.get(stream.name) or {}
        span = [part.get("start"), part.get("end")]
        exported.check_value(schema.MODALITY, f"{kind}.{stream.name}", span, [start, start + stream.width])
        start += stream.width


def _check_part(findings: Findings, info: Info, name: str, part: dict[str, Any], column: str) -> None:
    feature = info.features.get(column)
    if feature is None:
        findings.add(schema.MODALITY, f"{name}: {column} is not a column of the dataset")
        return
    start, end = part.get("start"), part.get("end")
    within = isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= feature.shape[0]
    text = f"{name}: {start} to {end} are not columns of {column}, which has {feature.shape[0]}"
    findings.check(within, schema.MODALITY, text)


def _check(findings: Findings) -> None:
    with closing(LeRobotRows(findings)) as rows:
        info = rows.info
        size = info.raw.get("chunks_size", 1000)
        text = f"chunks_size is {printable(size, 20)}; it must be a positive integer"
        if not findings.check(isinstance(size, int) and size > 0, schema.INFO, text):
            size = 1000
        version = info.raw["codebase_version"]
        text = f"codebase_version is {version}; LeRobot's readers of v2.1 refuse others"
        findings.check(version == schema.VERSION_V21, schema.INFO, text)
        tasks = read_lines(findings.dataset, schema.TASKS_V21)
        indices = [task.get("task_index") for task in tasks]
        findings.check(indices == list(range(len(tasks))), schema.TASKS_V21, "task_index is not 0, 1, 2, …")
        info.check_total(findings, "total_tasks", len(tasks))
        rows.tasks = [str(task.get("task")) for task in tasks]
        episodes = _episodes(findings, rows, size)
        _check_episodes(findings, rows, episodes, size)
        rows.check_whole(schema.EPISODES_V21, len(episodes), schema.TASKS_V21)
        check_gr00t_statistics(findings, rows)
        check_norm_stats(findings, info, rows.statistics())
        check_modality(findings, info, rows.exported)
    listed = set()
    for key, feature in info.videos.items():
        for episode, (length, _) in enumerate(episodes):
            place = {"episode_chunk": episode // size, "episode_index": episode}
            name = info.path("video_path", **place, video_key=key)
            listed.add(name)
            check_video(findings, name, info, feature, [Span(episode, 0.0, length)])
    findings.check_listed("videos/*/*/*.mp4", listed, "is not a video of an episode")
    if info.videos and not findings.decode:
        findings.skip("pictures in the videos: frames are counted, not decoded; --decode decodes them")
    if not (findings.dataset / schema.STATS).exists():
        findings.skip(f"{schema.STATS}: there is none; GR00T computes it")


def _episodes(findings: Findings, rows: LeRobotRows, chunk: int) -> list[tuple[int, Any]]:
    """Return the length and the tasks of each episode."""
    info, found = rows.info, []
    for number, row in enumerate(read_lines(findings.dataset, schema.EPISODES_V21)):
        where = f"{schema.EPISODES_V21}, line {number + 1}"
        index, length = row.get("episode_index"), row.get("length")
        findings.check(index == number, where, f"episode_index is {index}; it must be {number}")
        if not isinstance(length, int) or length < 1:
            findings.add(where, f"length is {length}; it must be a positive integer")
            length = 0
        unknown = [task for task in row.get("tasks") or () if task not in rows.tasks]
        findings.check(not unknown, where, f"its task {unknown[:1]} is not in {schema.TASKS_V21}")
        found.append((length, row.get("tasks")))
    info.check_total(findings, "total_episodes", len(found))
    info.check_splits(findings, len(found))
    info.check_total(findings, "total_chunks", -(-len(found) // chunk))
    info.check_total(findings, "total_videos", len(found) * len(info.videos))
    findings.counted["episodes"] += len(found)
    return found


def _check_episodes(findings: Findings, rows: LeRobotRows, episodes: list[tuple[int, Any]], chunk: int) -> None:
    stored: list[dict[str, Any]] = []
    with findings.reading(schema.EPISODES_STATS):
        stored = read_lines(findings.dataset, schema.EPISODES_STATS)
        text = f"{len(stored)} of {len(episodes)} episodes"
        findings.check(len(stored) == len(episodes), schema.EPISODES_STATS, text)
    listed = set()
    for episode, (length, tasks) in enumerate(episodes):
        name = rows.info.path("data_path", episode_chunk=episode // chunk, episode_index=episode)
        listed.add(name)
        with findings.reading(name):
            table = read_table(file_in(findings.dataset, name), name)
            rows.check_unlisted(name, table.column_names)
            first = rows.rows
            rows.check_rows(name, table, episode, length, tasks)
            if episode < len(stored):
                where, of_features = f"{schema.EPISODES_STATS}, episode {episode}", stored[episode].get("stats")
                if stored[episode].get("episode_index") != episode or not isinstance(of_features, dict):
                    findings.add(where, "has another episode_index, or no stats")
                    continue
                rows.compare_statistics(where, of_features, rows.statistics(first))
                rows.compare_image_statistics(where, of_features)
    findings.check_listed("data/*/*.parquet", listed, "is not a file of an episode; LeRobot reads it as one")


LEROBOT_V21 = LeRobotCheck("LeRobot v2.1", "v2", _check)
