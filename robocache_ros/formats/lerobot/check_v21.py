"""Check LeRobot datasets v2.1, with the files of GR00T."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from robocache_ros.errors import printable
from robocache_ros.extras import need
from robocache_ros.file_limits import read_table
from robocache_ros.formats.check import (
    ExportedRows,
    Findings,
    check_image_statistics,
    compare,
    file_in,
    read_json,
    read_lines,
)
from robocache_ros.formats.lerobot import schema
from robocache_ros.formats.lerobot.check import (
    EpisodeRows,
    Info,
    Span,
    check_images,
    check_norm_stats,
    check_own,
    check_standard_features,
    check_video,
    codebase_version,
    read_info,
)
from robocache_ros.formats.schema import ACTION, IMAGES, STATE

COLUMNS = {"state": STATE, "action": ACTION}  # where the values are, unless original_key says otherwise


def check_gr00t_statistics(findings: Findings, info: Info, rows: EpisodeRows) -> None:
    """Compare meta/stats.json with the values, if it exists."""
    if not (findings.dataset / schema.STATS).exists():
        return
    with findings.reading(schema.STATS, AttributeError):
        stored = read_json(findings.dataset, schema.STATS)
        values = rows.statistics()
        for key, told in stored.items():
            lacking = [name for name in schema.GR00T_STATS if name not in told]
            findings.check(not lacking, schema.STATS, f"{key} has no {', '.join(lacking)}: GR00T overwrites the file")
            if key in values:
                compare(findings, f"{schema.STATS}: {key}", told, values[key], exact=info.own)
        for key, feature in info.features.items():
            if feature.dtype.startswith("float"):
                findings.check(key in stored, schema.STATS, f"has no {key}: GR00T computes and overwrites the file")


def check_modality(findings: Findings, info: Info, exported: ExportedRows | None) -> None:
    """Check that meta/modality.json names columns and videos of the dataset, and each stream of an export."""
    if not (findings.dataset / schema.MODALITY).exists():
        findings.skip(f"{schema.MODALITY}: there is none; GR00T needs it")
        return
    with findings.reading(schema.MODALITY, AttributeError, TypeError):
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


class LeRobotV21Check:
    """Reads every file of a LeRobot v2.1 dataset."""

    title = "LeRobot v2.1"

    def recognizes(self, dataset: Path) -> bool:
        """Return whether the folder is a dataset of this format."""
        return (codebase_version(dataset) or "").startswith("v2")

    def check(self, findings: Findings) -> None:
        """Report everything that is wrong.

        Errors:
            RoboCacheError: one of the files in meta/ cannot be used.
        """
        info = read_info(findings.dataset)
        check_standard_features(findings, info)
        size = info.raw.get("chunks_size", 1000)
        text = f"chunks_size is {printable(size, 20)}; it must be a positive integer"
        findings.check(isinstance(size, int) and size > 0, schema.INFO, text)
        version = info.raw["codebase_version"]
        findings.check(
            version == schema.VERSION_V21,
            schema.INFO,
            f"codebase_version is {version}; LeRobot's readers of v2.1 refuse others",
        )
        tasks = self._tasks(findings, info)
        lengths, of_episodes = self._lengths(findings, info, tasks)
        with (
            tempfile.TemporaryDirectory(prefix="robocache-validate-") as folder,
            closing(EpisodeRows(findings, info, Path(folder), tasks)) as rows,
        ):
            self._check_episodes(findings, info, lengths, of_episodes, rows)
            info.check_total(findings, "total_frames", rows.rows)
            check_own(findings, rows, (schema.EPISODES_V21, len(lengths)), (schema.TASKS_V21, tasks))
            check_gr00t_statistics(findings, info, rows)
            check_norm_stats(findings, info, rows.statistics())
            check_modality(findings, info, rows.own.exported)
        self._check_videos(findings, info, lengths)

    def _tasks(self, findings: Findings, info: Info) -> list[str]:
        rows = read_lines(findings.dataset, schema.TASKS_V21)
        indices = [row.get("task_index") for row in rows]
        findings.check(indices == list(range(len(rows))), schema.TASKS_V21, "task_index is not 0, 1, 2, …")
        info.check_total(findings, "total_tasks", len(rows))
        return [str(row.get("task")) for row in rows]

    def _lengths(self, findings: Findings, info: Info, tasks: list[str]) -> tuple[list[int], list[Any]]:
        """Return the length and the tasks of each episode."""
        lengths, of_episodes = [], []
        for number, row in enumerate(read_lines(findings.dataset, schema.EPISODES_V21)):
            where = f"{schema.EPISODES_V21}, line {number + 1}"
            index, length = row.get("episode_index"), row.get("length")
            findings.check(index == number, where, f"episode_index is {index}; it must be {number}")
            if not isinstance(length, int) or length < 1:
                findings.add(where, f"length is {length}; it must be a positive integer")
                length = 0
            unknown = [task for task in row.get("tasks") or () if task not in tasks]
            findings.check(not unknown, where, f"its task {unknown[:1]} is not in {schema.TASKS_V21}")
            lengths.append(length)
            of_episodes.append(row.get("tasks"))
        info.check_total(findings, "total_episodes", len(lengths))
        info.check_splits(findings, len(lengths))
        info.check_total(findings, "total_chunks", -(-len(lengths) // self._chunk(info)))
        info.check_total(findings, "total_videos", len(lengths) * len(info.videos))
        findings.counted["episodes"] += len(lengths)
        return lengths, of_episodes

    def _chunk(self, info: Info) -> int:
        size = info.raw.get("chunks_size")
        return size if isinstance(size, int) and size > 0 else 1000

    def _check_episodes(
        self, findings: Findings, info: Info, lengths: list[int], tasks: list[Any], rows: EpisodeRows
    ) -> None:
        pyarrow = need("pyarrow", "export")
        stored: list[dict[str, Any]] = []
        with findings.reading(schema.EPISODES_STATS):
            stored = read_lines(findings.dataset, schema.EPISODES_STATS)
            findings.check(
                len(stored) == len(lengths), schema.EPISODES_STATS, f"{len(stored)} of {len(lengths)} episodes"
            )
        listed = set()
        for episode, length in enumerate(lengths):
            chunk = episode // self._chunk(info)
            name = info.path("data_path", episode_chunk=chunk, episode_index=episode)
            listed.add(name)
            with findings.reading(name, pyarrow.ArrowException, ValueError):
                table = read_table(file_in(findings.dataset, name), name)
                for extra in sorted(set(table.column_names) - set(info.features)):
                    findings.add(name, f"column {extra} is not a feature of {schema.INFO}")
                first = rows.rows
                rows.check(name, table, episode, length, tasks[episode])
                check_images(findings, info, f"{name}, episode {episode}", table, rows.own)
                if episode < len(stored):
                    self._check_statistics(findings, info, stored[episode], episode, rows, first)
        for path in sorted(findings.dataset.glob("data/*/*.parquet")):
            name = path.relative_to(findings.dataset).as_posix()
            findings.check(name in listed, name, "is not a file of an episode; LeRobot reads it as one")

    def _check_statistics(
        self, findings: Findings, info: Info, stored: dict[str, Any], episode: int, rows: EpisodeRows, first: int
    ) -> None:
        """Compare the statistics of an episode, whose rows begin at `first`."""
        where = f"{schema.EPISODES_STATS}, episode {episode}"
        of_features = stored.get("stats")
        if stored.get("episode_index") != episode or not isinstance(of_features, dict):
            findings.add(where, "has another episode_index, or no stats")
            return
        for key, values in rows.statistics(first).items():
            if key in of_features:
                compare(findings, f"{where}: {key}", of_features[key], values, exact=info.own)
            else:
                findings.add(where, f"has no {key}")
        for key, feature in info.features.items():
            if feature.size and key in of_features and not feature.video.get("is_depth_map"):
                check_image_statistics(findings, f"{where}: {key}", of_features[key])

    def _check_videos(self, findings: Findings, info: Info, lengths: list[int]) -> None:
        listed = set()
        for key, feature in info.videos.items():
            for episode, length in enumerate(lengths):
                chunk = episode // self._chunk(info)
                name = info.path("video_path", episode_chunk=chunk, episode_index=episode, video_key=key)
                listed.add(name)
                stated = feature.video if info.own else None
                check_video(findings, name, feature.size, info.fps, [Span(episode, 0.0, length)], stated)
        for path in sorted(findings.dataset.glob("videos/*/*/*.mp4")):
            name = path.relative_to(findings.dataset).as_posix()
            findings.check(name in listed, name, "is not a video of an episode")
        if info.videos and not findings.decode:
            findings.skip("pictures in the videos: frames are counted, not decoded; --decode decodes them")
        if not (findings.dataset / schema.STATS).exists():
            findings.skip(f"{schema.STATS}: there is none; GR00T computes it")


LEROBOT_V21 = LeRobotV21Check()
