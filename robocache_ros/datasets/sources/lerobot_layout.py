"""Where the rows, the videos and the tasks of the episodes of a LeRobot dataset are: v3.0 and v2.1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robocache_ros.datasets.episode_source import MAX_EPISODES, DatasetError
from robocache_ros.datasets.files.dataset_files import read_object, read_objects
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.file_limits import read_table, task_texts, values_of
from robocache_ros.untrusted_files import DatasetFile, file_below, files_below, filled

VERSIONS = ("v3.0", "v2.1", "v2.0")
MAX_SECONDS = 1e7  # of a video
META_BYTES = 4 << 30  # of the tables of episodes
BATCH_ROWS = 1 << 14  # of the table of episodes, that are Python objects at once


@dataclass(frozen=True)
class EpisodePlace:
    """An episode: the file of its rows, and of each video the file and the time of its first frame in s."""

    index: int
    length: int
    rows: str
    videos: dict[str, tuple[str, float]]


@dataclass(frozen=True)
class LeRobotLayout:
    """The contents of `meta/`."""

    fps: float
    features: dict[str, dict[str, Any]]
    episodes: list[EpisodePlace]
    tasks: dict[int, str]

    @property
    def videos(self) -> list[str]:
        """The features that are videos of colour images."""
        return [name for name, about in self.features.items() if about.get("dtype") == "video" and not _is_depth(about)]

    @property
    def depth_videos(self) -> dict[str, dict[str, Any]]:
        """The features that are videos of depth, and what info.json states of them."""
        return {name: _info(about) for name, about in self.features.items() if _is_depth(about)}


def read_layout(folder: Path) -> LeRobotLayout:
    """Read the metadata of a dataset.

    Errors:
        DatasetError: a file is missing or damaged, or the version is not known.
    """
    path = folder / "meta" / "info.json"
    if not path.exists():
        raise DatasetError(f"{printable(path)}: not there; give the folder of a LeRobot dataset")
    info = read_object(file_below(folder, "meta/info.json"))
    where = printable(path)
    try:
        version, fps, features = str(info["codebase_version"]), float(info["fps"]), dict(info["features"])
        if version not in VERSIONS:
            raise DatasetError(
                f"{where}: version {printable(version, 20)}, not {', '.join(VERSIONS)}; convert it with lerobot"
            )
        layout = LeRobotLayout(fps, features, [], {})
        videos = [*layout.videos, *layout.depth_videos]
        read = _episodes_v3 if version == "v3.0" else _episodes_v2
        episodes = read(folder, info, videos)
        tasks = _tasks_v3(folder) if version == "v3.0" else _tasks_v2(folder)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{where}: malformed ({printable(error, 60)}); get the folder meta again") from None
    listed = info.get("total_episodes", len(episodes))
    if isinstance(listed, int) and len(episodes) < listed:
        raise DatasetError(f"{where}: meta has {len(episodes):,} of {listed:,} episodes; get the folder meta again")
    if len(episodes) > MAX_EPISODES:
        raise DatasetError(f"{where}: {len(episodes):,} episodes; at most {MAX_EPISODES:,} are read")
    return LeRobotLayout(fps, features, episodes, tasks)


def read_parquet(path: DatasetFile, columns: list[str] | None = None, **chosen: Any) -> Any:
    """Return a table of a parquet file; see `file_limits.read_table`, which has more arguments.

    Errors:
        DatasetError: the file is missing or damaged, or claims more than it can hold.
    """
    with parquet_errors(path):
        return read_table(path, printable(path), columns, **chosen)


def column_names(path: DatasetFile) -> list[str]:
    """Return the names of the columns of a parquet file."""
    with parquet_errors(path):
        names: list[str] = need("pyarrow.parquet", "datasets").read_schema(path).names
    return names


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Turn the errors of reading a parquet file into those of datasets."""
    try:
        yield
    except RoboCacheError as error:
        raise DatasetError(str(error)) from None
    except (OSError, need("pyarrow", "datasets").ArrowException) as error:
        reason = "not there" if isinstance(error, FileNotFoundError) else f"damaged ({printable(error, 60)})"
        raise DatasetError(f"{printable(path)}: {reason}; get the file again") from None


def column_labels(about: Mapping[str, Any], width: int) -> tuple[str, ...]:
    """Return the names of the columns of a feature: a list, or the only list in a dictionary; empty without names."""
    names = about.get("names")
    if isinstance(names, dict) and len(names) == 1:
        (names,) = names.values()
    return tuple(map(str, names)) if isinstance(names, list) and len(names) == width else ()


def _is_depth(about: Mapping[str, Any]) -> bool:
    return about.get("dtype") == "video" and any(
        _info(about).get(key) for key in ("is_depth_map", "video.is_depth_map")
    )


def _info(about: Mapping[str, Any]) -> dict[str, Any]:
    return dict(about.get("info") or about.get("video_info") or {})


def _episodes_v3(folder: Path, info: Mapping[str, Any], videos: list[str]) -> list[EpisodePlace]:
    paths = files_below(folder, "meta/episodes/*/*.parquet")
    if not paths:
        raise DatasetError(f"{printable(folder)}: no files in meta/episodes; get the folder meta again")
    if sum(path.stat().st_size for path in paths) > META_BYTES:
        raise DatasetError(
            f"{printable(folder)}: meta/episodes is larger than {META_BYTES >> 30} GiB; check the dataset"
        )
    places = ["chunk_index", "file_index"]
    columns = ["episode_index", "length", *(f"data/{place}" for place in places)]
    columns += [f"videos/{name}/{part}" for name in videos for part in (*places, "from_timestamp")]
    found: list[EpisodePlace] = []
    for path in paths:
        table = read_parquet(path, columns, distinct=True)
        if other := [field.name for field in table.schema if not _is_number(field.type)]:
            raise DatasetError(f"{printable(path)}: {printable(other[0], 40)} is not a number; get the file again")
        if len(found) + len(table) > MAX_EPISODES:
            raise DatasetError(f"{printable(folder)}: more than {MAX_EPISODES:,} episodes; split the dataset")
        for row in (row for batch in table.to_batches(max_chunksize=BATCH_ROWS) for row in batch.to_pylist()):
            data = {place: row[f"data/{place}"] for place in places}
            files = {
                name: (
                    filled(info["video_path"], video_key=name, **{p: row[f"videos/{name}/{p}"] for p in places}),
                    _seconds(row[f"videos/{name}/from_timestamp"]),
                )
                for name in videos
            }
            rows = filled(info["data_path"], **data)
            found.append(EpisodePlace(int(row["episode_index"]), int(row["length"]), rows, files))
    return sorted(found, key=lambda place: place.index)


def _is_number(kind: Any) -> bool:
    types = need("pyarrow.types", "datasets")
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _episodes_v2(folder: Path, info: Mapping[str, Any], videos: list[str]) -> list[EpisodePlace]:
    found, chunk = [], int(info.get("chunks_size", 1000))
    if chunk < 1:
        raise ValueError(f"chunks_size is {chunk}")
    for row in read_objects(file_below(folder, "meta/episodes.jsonl")):
        index = int(row["episode_index"])
        values = {"episode_index": index, "episode_chunk": index // chunk}
        files = {name: (filled(info["video_path"], video_key=name, **values), 0.0) for name in videos}
        found.append(EpisodePlace(index, int(row["length"]), filled(info["data_path"], **values), files))
    return sorted(found, key=lambda place: place.index)


def _seconds(value: Any) -> float:
    if not 0 <= float(value) < MAX_SECONDS:
        raise ValueError(f"a video begins at {value} s")
    return float(value)


def _tasks_v3(folder: Path) -> dict[int, str]:
    path = file_below(folder, "meta/tasks.parquet")
    names = column_names(path)
    text = "task" if "task" in names else "__index_level_0__"
    table = read_parquet(path, ["task_index", text], distinct=True)
    with parquet_errors(path):
        tasks = task_texts(table[text], printable(path))
    return dict(zip(map(int, values_of(table["task_index"])), tasks, strict=True))


def _tasks_v2(folder: Path) -> dict[int, str]:
    return {int(row["task_index"]): str(row["task"]) for row in read_objects(file_below(folder, "meta/tasks.jsonl"))}
