"""Validation of LeRobot v3.0 datasets."""

from __future__ import annotations

import glob
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np

from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.file_limits import group_starts, open_table, read_table, task_texts, values_of
from robocache_ros.formats.check import Findings, compare_images, file_in, files_in, read_json
from robocache_ros.formats.lerobot.check import (
    TOLERANCE_S,
    LeRobotCheck,
    LeRobotRows,
    Span,
    check_norm_stats,
    check_video,
)
from robocache_ros.formats.lerobot.schema import INFO, STATS, TASKS
from robocache_ros.formats.parquet import column_names
from robocache_ros.untrusted_files import DatasetFile

EPISODES = "meta/episodes/*/*.parquet"
PLACE = ("episode_index", "length", "data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")

Episode = dict[str, Any]  # a row of the episodes' table


def _check(findings: Findings) -> None:
    with closing(LeRobotRows(findings)) as rows:
        rows.tasks = _tasks(findings, rows)
        episodes = _episodes(findings, rows)
        stored = _EpisodeStatistics(rows)
        listed = set()
        for name, of_file in _by_file(rows, "data_path", "data", episodes):
            listed.add(name)
            with findings.reading(name):
                _check_file(rows, name, file_in(findings.dataset, name), of_file, stored)
        findings.check_listed("data/*/*.parquet", listed, "no episode is in this file")
        rows.check_whole(EPISODES, len(episodes), TASKS)
        _check_statistics(findings, rows, stored)
    for key in rows.info.videos:
        _check_videos(findings, rows, key, episodes)
    videos = [f"videos/{key}" for key in rows.info.videos]
    findings.check_listed("videos/*", videos, f"is not a video of {INFO}")
    if videos and not findings.decode:
        findings.skip("pictures in the videos: frames are counted, not decoded; --decode decodes them")


def _tasks(findings: Findings, rows: LeRobotRows) -> list[str]:
    """Return the tasks by their index."""
    table = None
    with findings.reading(TASKS):
        table = read_table(file_in(findings.dataset, TASKS), TASKS, distinct=True)
    if table is None or "task_index" not in table.column_names:
        findings.check(table is None, TASKS, "has no column task_index")
        return []
    text = next((name for name in ("task", "__index_level_0__") if name in table.column_names), None)
    if text is None:
        findings.add(TASKS, "has no index of tasks")
        return []
    found = sorted(zip(values_of(table["task_index"]), task_texts(table[text], TASKS), strict=True))
    findings.check([index for index, _ in found] == list(range(len(found))), TASKS, "task_index is not 0, 1, 2, …")
    findings.check(len({task for _, task in found}) == len(found), TASKS, "a task has two indices")
    rows.info.check_total(findings, "total_tasks", len(found))
    return [task for _, task in found]


def _episodes(findings: Findings, rows: LeRobotRows) -> list[Episode]:
    """Return the episodes in order, without those that are not usable."""
    read: list[Episode] = []
    for name in files_in(findings.dataset, EPISODES):
        with findings.reading(name):
            path = file_in(findings.dataset, name)
            columns = [column for column in column_names(path) if not column.startswith("stats/")]
            table = read_table(path, name, columns, distinct=True)  # first: it refuses a file that claims too much
            sizes = np.diff(group_starts(path, name)).tolist()
            places = [(group, row) for group, size in enumerate(sizes) for row in range(size)]
            found = zip(*map(values_of, table.columns), strict=True)
            read += [
                dict(zip(columns, row, strict=True), file=name, group=group, row=number)
                for row, (group, number) in zip(found, places, strict=True)
            ]
    findings.check(bool(read), EPISODES, "there are no episodes")
    episodes = []
    known, row = set(rows.tasks), 0
    for number, episode in enumerate(read):
        where = f"{episode['file']}, episode {number}"
        if lacking := [key for key in PLACE if not isinstance(episode.get(key), int)]:
            findings.add(where, f"has no integer {lacking[0]}")
            continue
        findings.check(episode["episode_index"] == number, where, f"episode_index is {episode['episode_index']}")
        span = (episode["dataset_from_index"], episode["dataset_to_index"])
        wanted = (row, row + episode["length"])
        findings.check(span == wanted, where, f"rows {span[0]} to {span[1]}; they must be {wanted[0]} to {wanted[1]}")
        findings.check(episode["length"] > 0, where, "has no rows")
        unknown = [task for task in episode.get("tasks") or () if task not in known]
        findings.check(not unknown, where, f"its task {unknown[:1]} is not in {TASKS}")
        row += episode["length"]
        episodes.append(episode)
    rows.info.check_total(findings, "total_episodes", len(read))
    rows.info.check_splits(findings, len(read))
    findings.counted["episodes"] += len(episodes)
    return episodes


def _check_file(
    rows: LeRobotRows, name: str, path: DatasetFile, episodes: list[Episode], stored: _EpisodeStatistics
) -> None:
    """Check the rows of a data file, in which its episodes are contiguous and in order."""
    findings, pyarrow = rows.findings, need("pyarrow", "export")
    with open_table(path, name) as file:
        rows.check_unlisted(name, file.schema_arrow.names)
        total, stated = sum(episode["length"] for episode in episodes), file.metadata.num_rows
        findings.check(stated == total, name, f"{stated} rows; its episodes have {total}")
        batches = (file.read_row_group(group) for group in range(file.num_row_groups))
        rest = file.schema_arrow.empty_table()
        for episode in episodes:
            while len(rest) < episode["length"] and (batch := next(batches, None)) is not None:
                rest = pyarrow.concat_tables([rest, batch])
            table, rest = rest.slice(0, episode["length"]), rest.slice(episode["length"])
            first = rows.rows
            rows.check_rows(name, table, episode["episode_index"], episode["length"], episode.get("tasks"))
            with findings.reading(episode["file"]):
                stored.check(episode, first)


def _check_statistics(findings: Findings, rows: LeRobotRows, of_episodes: _EpisodeStatistics) -> None:
    if not (findings.dataset / STATS).exists():
        findings.add(STATS, "is missing: policies normalise with it")
        return
    with findings.reading(STATS):
        stored, values = read_json(findings.dataset, STATS), rows.statistics()
        rows.compare_statistics(STATS, stored, values)
        for key, of_key in of_episodes.images.items():
            if key in stored:
                compare_images(findings, f"{STATS}: {key}", stored[key], of_key)
        check_norm_stats(findings, rows.info, values)
        images = [key for key, feature in rows.info.features.items() if feature.size]
        if images:
            findings.check(all(key in stored for key in images), STATS, "has no statistics of an image feature")
            findings.skip("statistics of images: they are of a sample of the pixels")
        if not rows.info.own:
            findings.skip("quantiles: LeRobot merges those of episodes, which is not exact")


def _check_videos(findings: Findings, rows: LeRobotRows, key: str, episodes: list[Episode]) -> None:
    listed, info = set(), rows.info
    for name, of_file in _by_file(rows, "video_path", f"videos/{key}", episodes, video_key=key):
        listed.add(name)
        try:
            spans = [Span(e["episode_index"], float(e[f"videos/{key}/from_timestamp"]), e["length"]) for e in of_file]
            for e, span in zip(of_file, spans, strict=True):
                stop, wanted = float(e[f"videos/{key}/to_timestamp"]), span.start_s + span.length / info.fps
                text = f"videos/{key}/to_timestamp is {stop:g}; its rows end at {wanted:g} s"
                findings.check(abs(stop - wanted) <= TOLERANCE_S, f"{e['file']}, episode {span.episode}", text)
        except (KeyError, TypeError, ValueError):
            findings.add(EPISODES, f"an episode has no videos/{key}/from_timestamp and to_timestamp")
            continue
        check_video(findings, name, info, info.videos[key], spans)
    findings.check_listed(f"videos/{glob.escape(key)}/*/*", listed, "no episode is in this file")


class _EpisodeStatistics:
    """The statistics of each episode, in the episodes' table.

    Attributes:
        images: by feature, those of the images of each episode.
    """

    def __init__(self, rows: LeRobotRows) -> None:
        self._rows = rows
        self._read: tuple[tuple[str, int], list[dict[str, Any]]] = (("", 0), [])
        self.images: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def check(self, episode: Episode, first: int) -> None:
        """Compare the statistics of an episode with those of its values, which begin at row `first`."""
        stored = self._stored(episode)
        where = f"{episode['file']}, episode {episode['episode_index']}"
        values = self._rows.statistics(first) if self._rows.rows > first else {}
        if not self._rows.info.own:  # others may lack some
            values = {key: of_key for key, of_key in values.items() if key in stored}
        self._rows.compare_statistics(where, stored, values, name="stats/")
        for key in self._rows.compare_image_statistics(where, stored, name="stats/"):
            self.images[key].append(stored[key])

    def _stored(self, episode: Episode) -> dict[str, dict[str, Any]]:
        """Return the statistics in the table by feature and name; read a row group at a time."""
        place = episode["file"], episode["group"]
        if self._read[0] != place:
            with open_table(file_in(self._rows.findings.dataset, place[0]), place[0]) as file:
                columns = [column for column in file.schema_arrow.names if column.startswith("stats/")]
                table = file.read_row_group(place[1], columns=columns) if columns else None
            self._read = place, table.to_pylist() if table is not None else []
        found: dict[str, dict[str, Any]] = defaultdict(dict)
        for column, value in self._read[1][episode["row"]].items() if self._read[1] else ():
            key, _, name = column.removeprefix("stats/").rpartition("/")
            found[key][name] = value
        return found


def _by_file(
    rows: LeRobotRows, template: str, prefix: str, episodes: list[Episode], **names: str
) -> Iterator[tuple[str, list[Episode]]]:
    """Return each file with the episodes in it, in order of the first episode."""
    files: dict[tuple[Any, Any], list[Episode]] = defaultdict(list)
    for episode in episodes:
        files[episode.get(f"{prefix}/chunk_index"), episode.get(f"{prefix}/file_index")].append(episode)
    for (chunk, file), of_file in files.items():
        if not isinstance(chunk, int) or not isinstance(file, int):
            raise RoboCacheError(f"{EPISODES}: an episode has no {prefix}/chunk_index and file_index")
        yield rows.info.path(template, chunk_index=chunk, file_index=file, **names), of_file


LEROBOT_V3 = LeRobotCheck("LeRobot v3.0", "v3", _check)
