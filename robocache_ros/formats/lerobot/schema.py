"""Files, features and columns of LeRobot datasets, v2.1 and v3.0, and of the files that GR00T and openpi read."""

from __future__ import annotations

from robocache_ros.formats import read as schema
from robocache_ros.formats.read import ACTION, STATE
from robocache_ros.formats.video import MAX_M, MIN_M, SHIFT_M

VERSION_V3, VERSION_V21 = "v3.0", "v2.1"
INFO, STATS = "meta/info.json", "meta/stats.json"
PROVENANCE = f"meta/{schema.PROVENANCE}"  # of datasets that this package wrote
TASKS, EPISODES_V3 = "meta/tasks.parquet", "meta/episodes/chunk-000/file-000.parquet"
TASKS_V21, EPISODES_V21 = "meta/tasks.jsonl", "meta/episodes.jsonl"
EPISODES_STATS = "meta/episodes_stats.jsonl"
CHUNK_EPISODES = 1000  # episodes of v2.1 per folder, as in LeRobot
DATA_PATH_V21 = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH_V21 = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
# Columns that LeRobot adds to every dataset, and those of what follows the action of a row.
STANDARD = {
    "timestamp": "float32",
    **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64"),
}
REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"
INTERVENTION = "intervention"  # as in LeRobot's datasets of corrections
# How info.json describes the codes of depth videos, from which LeRobot computes depths.
DEPTH_CODES = {"video.depth_min": MIN_M, "video.depth_max": MAX_M, "video.shift": SHIFT_M, "video.use_log": True}
DEPTH_PIXELS = "gray12le"
# GR00T's files, and its names for the index of the task: its own, and that of its examples for new robots.
MODALITY = "meta/modality.json"
ANNOTATION, SHORT_ANNOTATION = "human.action.task_description", "human.task_description"
ANNOTATION_COLUMN = f"annotation.{ANNOTATION}"
GR00T_STATS = ("mean", "std", "min", "max", "q01", "q99")  # GR00T indexes each of them by column, so no count
# openpi's statistics.
NORM_STATS = "meta/openpi/norm_stats.json"
OPENPI_STATS = ("mean", "std", "q01", "q99")
OPENPI_KEYS = {"state": STATE, "actions": ACTION}
