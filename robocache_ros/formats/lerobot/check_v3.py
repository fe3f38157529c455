"""Validation of LeRobot v3.0 datasets."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need
from robocache_ros.file_limits import open_table, read_table, task_texts, values_of
from robocache_ros.formats.check import (
    Findings,
    check_image_statistics,
    compare,
    compare_images,
    file_in,
    files_in,
    read_json,
)
from robocache_ros.formats.lerobot.check import (
    TOLERANCE_S,
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
from robocache_ros.formats.lerobot.schema import INFO, STATS, TASKS
from robocache_ros.untrusted_files import DatasetFile

EPISODES = "meta/episodes/*/*.parquet"
PLACE = ("episode_index", "length", "data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")

Episode = dict[str, Any]  # a row of the episodes' table


class LeRobotV3Check:
    """Reads every file of a LeRobot v3.0 dataset."""

    title = "LeRobot v3.0"

    def recognizes(self, dataset: Path) -> bool:
        """Return whether the folder is a dataset of this format."""
        return (codebase_version(dataset) or "").startswith("v3")

    def check(self, findings: Findings) -> None:
        """Report everything that is wrong.

        Errors:
            RoboCacheError: meta/info.json cannot be used.
        """
        info = read_info(findings.dataset)
        check_standard_features(findings, info)
        tasks = self._tasks(findings, info)
        episodes = self._episodes(findings, info, tasks)
        with (
            tempfile.TemporaryDirectory(prefix="robocache-validate-") as folder,
            closing(EpisodeRows(findings, info, Path(folder), tasks)) as rows,
        ):
            stored = _EpisodeStatistics(findings, info)
            self._check_data(findings, info, episodes, rows, stored)
            info.check_total(findings, "total_frames", rows.rows)
            check_own(findings, rows, (EPISODES, len(episodes)), (TASKS, tasks))
            self._check_statistics(findings, info, rows, stored)
        self._check_videos(findings, info, episodes)

    def _tasks(self, findings: Findings, info: Info) -> list[str]:
        """Return the tasks by their index."""
        table = None
        with findings.reading(TASKS, *_parquet_errors()):
            table = read_table(file_in(findings.dataset, TASKS), TASKS, distinct=True)
        if table is None or "task_index" not in table.column_names:
            findings.check(table is None, TASKS, "has no column task_index")
            return []
        text = next((name for name in ("task", "__index_level_0__") if name in table.column_names), None)
        if text is None:
            findings.add(TASKS, "has no index of tasks")
            return []
        rows = sorted(zip(values_of(table["task_index"]), task_texts(table[text], TASKS), strict=True))
        findings.check([index for index, _ in rows] == list(range(len(rows))), TASKS, "task_index is not 0, 1, 2, …")
        findings.check(len({task for _, task in rows}) == len(rows), TASKS, "a task has two indices")
        info.check_total(findings, "total_tasks", len(rows))
        return [task for _, task in rows]

    def _episodes(self, findings: Findings, info: Info, tasks: list[str]) -> list[Episode]:
        """Return the episodes in order, without those that are not usable."""
        read: list[Episode] = []
        for name in files_in(findings.dataset, EPISODES):
            with findings.reading(name, *_parquet_errors()):
                path = file_in(findings.dataset, name)
                with open_table(path, name) as file:
                    columns = [column for column in file.schema_arrow.names if not column.startswith("stats/")]
                    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
                places = [(group, row) for group, size in enumerate(sizes) for row in range(size)]
                rows = zip(*map(values_of, read_table(path, name, columns, distinct=True).columns), strict=True)
                read += [
                    dict(zip(columns, row, strict=True), file=name, group=group, row=number)
                    for row, (group, number) in zip(rows, places, strict=True)
                ]
        if not read:
            findings.add(EPISODES, "there are no episodes")
        episodes = []
        known, row = set(tasks), 0
        for number, episode in enumerate(read):
            where = f"{episode['file']}, episode {number}"
            if any(not isinstance(episode.get(key), int) for key in PLACE):
                findings.add(where, f"has no integer {next(k for k in PLACE if not isinstance(episode.get(k), int))}")
                continue
            findings.check(episode["episode_index"] == number, where, f"episode_index is {episode['episode_index']}")
            span = (episode["dataset_from_index"], episode["dataset_to_index"])
            wanted = (row, row + episode["length"])
            findings.check(
                span == wanted, where, f"rows {span[0]} to {span[1]}; they must be {wanted[0]} to {wanted[1]}"
            )
            findings.check(episode["length"] > 0, where, "has no rows")
            unknown = [task for task in episode.get("tasks") or () if task not in known]
            findings.check(not unknown, where, f"its task {unknown[:1]} is not in {TASKS}")
            row += episode["length"]
            episodes.append(episode)
        info.check_total(findings, "total_episodes", len(read))
        info.check_splits(findings, len(read))
        findings.counted["episodes"] += len(episodes)
        return episodes

    def _check_data(
        self,
        findings: Findings,
        info: Info,
        episodes: list[Episode],
        rows: EpisodeRows,
        stored: _EpisodeStatistics,
    ) -> None:
        listed = set()
        for name, of_file in _by_file(info, "data_path", "data", episodes):
            listed.add(name)
            with findings.reading(name, *_parquet_errors()):
                path = file_in(findings.dataset, name)
                _check_file(findings, info, name, path, of_file, rows, stored)
        for name in files_in(findings.dataset, "data/*/*.parquet"):
            findings.check(name in listed, name, "no episode is in this file")

    def _check_statistics(
        self, findings: Findings, info: Info, rows: EpisodeRows, of_episodes: _EpisodeStatistics
    ) -> None:
        if not (findings.dataset / STATS).exists():
            findings.add(STATS, "is missing: policies normalise with it")
            return
        with findings.reading(STATS):
            stored = read_json(findings.dataset, STATS)
            found = rows.statistics()
            for key, values in found.items():
                if key in stored:
                    compare(findings, f"{STATS}: {key}", stored[key], values, exact=info.own)
                else:
                    findings.add(STATS, f"has no {key}")
            for key, of_key in of_episodes.images.items():
                if key in stored:
                    compare_images(findings, f"{STATS}: {key}", stored[key], of_key)
            check_norm_stats(findings, info, found)
            images = [key for key, feature in info.features.items() if feature.size]
            if images:
                findings.check(all(key in stored for key in images), STATS, "has no statistics of an image feature")
                findings.skip("statistics of images: they are of a sample of the pixels")
            if not info.own:
                findings.skip("quantiles: LeRobot merges those of episodes, which is not exact")

    def _check_videos(self, findings: Findings, info: Info, episodes: list[Episode]) -> None:
        for key, feature in info.videos.items():
            listed = set()
            for name, of_file in _by_file(info, "video_path", f"videos/{key}", episodes, video_key=key):
                listed.add(name)
                try:
                    spans = [
                        Span(e["episode_index"], float(e[f"videos/{key}/from_timestamp"]), e["length"]) for e in of_file
                    ]
                    for e, span in zip(of_file, spans, strict=True):
                        stop, wanted = float(e[f"videos/{key}/to_timestamp"]), span.start_s + span.length / info.fps
                        text = f"videos/{key}/to_timestamp is {stop:g}; its rows end at {wanted:g} s"
                        of_episode = f"{e['file']}, episode {span.episode}"
                        findings.check(abs(stop - wanted) <= TOLERANCE_S, of_episode, text)
                except (KeyError, TypeError, ValueError):
                    findings.add(EPISODES, f"an episode has no videos/{key}/from_timestamp and to_timestamp")
                    continue
                check_video(findings, name, feature.size, info.fps, spans, feature.video if info.own else None)
            for path in sorted((findings.dataset / "videos" / key).glob("*/*")):
                name = path.relative_to(findings.dataset).as_posix()
                findings.check(name in listed, name, "no episode is in this file")
        for path in sorted((findings.dataset / "videos").glob("*")):
            findings.check(path.name in info.videos, f"videos/{path.name}", f"is not a video of {INFO}")
        if info.videos and not findings.decode:
            findings.skip("pictures in the videos: frames are counted, not decoded; --decode decodes them")


class _EpisodeStatistics:
    """The statistics of each episode, in the episodes' table.

    Attributes:
        images: by feature, those of the images of each episode.
    """

    def __init__(self, findings: Findings, info: Info) -> None:
        self._findings, self._info = findings, info
        self._read: tuple[tuple[str, int], list[dict[str, Any]]] = (("", 0), [])
        self.images: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def check(self, episode: Episode, values: Mapping[str, Any]) -> None:
        """Compare the statistics of an episode with those of its values."""
        stored = self._stored(episode)
        where = f"{episode['file']}, episode {episode['episode_index']}"
        for key, of_key in values.items() if stored or self._info.own else ():
            if key in stored:
                compare(self._findings, f"{where}: stats/{key}", stored[key], of_key, exact=self._info.own)
            elif self._info.own:
                self._findings.add(where, f"has no stats/{key}")
        for key, feature in self._info.features.items():
            if feature.size and key in stored and not feature.video.get("is_depth_map"):
                check_image_statistics(self._findings, f"{where}: stats/{key}", stored[key])
                self.images[key].append(stored[key])

    def _stored(self, episode: Episode) -> dict[str, dict[str, Any]]:
        """Return the statistics in the table by feature and name; read a row group at a time."""
        place = episode["file"], episode["group"]
        if self._read[0] != place:
            with open_table(file_in(self._findings.dataset, place[0]), place[0]) as file:
                columns = [column for column in file.schema_arrow.names if column.startswith("stats/")]
                table = file.read_row_group(place[1], columns=columns) if columns else None
            self._read = place, table.to_pylist() if table is not None else []
        if not self._read[1]:
            return {}
        found: dict[str, dict[str, Any]] = defaultdict(dict)
        for column, value in self._read[1][episode["row"]].items():
            key, _, name = column.removeprefix("stats/").rpartition("/")
            found[key][name] = value
        return found


def _check_file(
    findings: Findings,
    info: Info,
    name: str,
    path: DatasetFile,
    episodes: list[Episode],
    rows: EpisodeRows,
    stored: _EpisodeStatistics,
) -> None:
    """Check the rows of a data file, in which its episodes are contiguous and in order."""
    pyarrow = need("pyarrow", "export")
    with open_table(path, name) as file:
        known = set(file.schema_arrow.names)
        for extra in sorted(known - set(info.features)):
            findings.add(name, f"column {extra} is not a feature of {INFO}")
        total = sum(episode["length"] for episode in episodes)
        told = file.metadata.num_rows
        findings.check(told == total, name, f"{told} rows; its episodes have {total}")
        batches = (file.read_row_group(group) for group in range(file.num_row_groups))
        rest = file.schema_arrow.empty_table()
        for episode in episodes:
            while len(rest) < episode["length"] and (batch := next(batches, None)) is not None:
                rest = pyarrow.concat_tables([rest, batch])
            table, rest = rest.slice(0, episode["length"]), rest.slice(episode["length"])
            first = rows.rows
            rows.check(name, table, episode["episode_index"], episode["length"], episode.get("tasks"))
            with findings.reading(episode["file"], *_parquet_errors()):
                stored.check(episode, rows.statistics(first) if rows.rows > first else {})
            check_images(findings, info, f"{name}, episode {episode['episode_index']}", table, rows.own)


def _by_file(
    info: Info, template: str, prefix: str, episodes: list[Episode], **names: str
) -> Iterator[tuple[str, list[Episode]]]:
    """Return each file with the episodes in it, in order of the first episode."""
    files: dict[tuple[Any, Any], list[Episode]] = defaultdict(list)
    for episode in episodes:
        files[episode.get(f"{prefix}/chunk_index"), episode.get(f"{prefix}/file_index")].append(episode)
    for (chunk, file), of_file in files.items():
        if not isinstance(chunk, int) or not isinstance(file, int):
            raise RoboCacheError(f"{EPISODES}: an episode has no {prefix}/chunk_index and file_index")
        yield info.path(template, chunk_index=chunk, file_index=file, **names), of_file


def _parquet_errors() -> tuple[type[Exception], ...]:
    return (need("pyarrow", "export").ArrowException, ValueError)


LEROBOT_V3 = LeRobotV3Check()
