"""Validation of LeRobot v2.1 datasets, with the files that GR00T adds."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from robocache_ros.errors import printable
from robocache_ros.export.validate.column_statistics import check_image_statistics, compare
from robocache_ros.export.validate.findings import Findings, file_in, read_lines
from robocache_ros.export.validate.lerobot.episode_rows import EpisodeRows
from robocache_ros.export.validate.lerobot.gr00t_files import STATS, check_gr00t_statistics, check_modality
from robocache_ros.export.validate.lerobot.image_cells import check_images
from robocache_ros.export.validate.lerobot.info_file import (
    INFO,
    Info,
    check_standard_features,
    codebase_version,
    read_info,
)
from robocache_ros.export.validate.lerobot.own_columns import STAMP, check_arrays, check_norm_stats
from robocache_ros.export.validate.video_files import Span, check_video
from robocache_ros.extras import need
from robocache_ros.file_limits import read_table

TASKS, EPISODES, EPISODES_STATS = "meta/tasks.jsonl", "meta/episodes.jsonl", "meta/episodes_stats.jsonl"


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
        findings.check(isinstance(size, int) and size > 0, INFO, text)
        version = info.raw["codebase_version"]
        findings.check(
            version == "v2.1", INFO, f"codebase_version is {version}; LeRobot's readers of v2.1 refuse others"
        )
        tasks = self._tasks(findings, info)
        lengths, of_episodes = self._lengths(findings, info, tasks)
        with (
            tempfile.TemporaryDirectory(prefix="robocache-validate-") as folder,
            closing(EpisodeRows(findings, info, Path(folder), tasks)) as rows,
        ):
            self._check_episodes(findings, info, lengths, of_episodes, rows)
            info.check_total(findings, "total_frames", rows.rows)
            exported = rows.own.exported
            if exported is not None:
                exported.check_count(len(lengths), EPISODES)
                exported.check_value(TASKS, "the list of tasks", tasks, exported.tasks)
                check_arrays(findings, exported, rows.starts, rows.table(STAMP))
            check_gr00t_statistics(findings, info, rows)
            check_norm_stats(findings, info, rows.statistics())
            check_modality(findings, info, exported)
        self._check_videos(findings, info, lengths)

    def _tasks(self, findings: Findings, info: Info) -> list[str]:
        rows = read_lines(findings.dataset, TASKS)
        indices = [row.get("task_index") for row in rows]
        findings.check(indices == list(range(len(rows))), TASKS, "task_index is not 0, 1, 2, …")
        info.check_total(findings, "total_tasks", len(rows))
        return [str(row.get("task")) for row in rows]

    def _lengths(self, findings: Findings, info: Info, tasks: list[str]) -> tuple[list[int], list[Any]]:
        """Return the length and the tasks of each episode."""
        lengths, of_episodes = [], []
        for number, row in enumerate(read_lines(findings.dataset, EPISODES)):
            where = f"{EPISODES}, line {number + 1}"
            index, length = row.get("episode_index"), row.get("length")
            findings.check(index == number, where, f"episode_index is {index}; it must be {number}")
            if not isinstance(length, int) or length < 1:
                findings.add(where, f"length is {length}; it must be a positive integer")
                length = 0
            unknown = [task for task in row.get("tasks") or () if task not in tasks]
            findings.check(not unknown, where, f"its task {unknown[:1]} is not in {TASKS}")
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
        with findings.reading(EPISODES_STATS):
            stored = read_lines(findings.dataset, EPISODES_STATS)
            findings.check(len(stored) == len(lengths), EPISODES_STATS, f"{len(stored)} of {len(lengths)} episodes")
        listed = set()
        for episode, length in enumerate(lengths):
            chunk = episode // self._chunk(info)
            name = info.path("data_path", episode_chunk=chunk, episode_index=episode)
            listed.add(name)
            with findings.reading(name, pyarrow.ArrowException, ValueError):
                table = read_table(file_in(findings.dataset, name), name)
                for extra in sorted(set(table.column_names) - set(info.features)):
                    findings.add(name, f"column {extra} is not a feature of {INFO}")
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
        where = f"{EPISODES_STATS}, episode {episode}"
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
        if not (findings.dataset / STATS).exists():
            findings.skip(f"{STATS}: there is none; GR00T computes it")


LEROBOT_V21 = LeRobotV21Check()
