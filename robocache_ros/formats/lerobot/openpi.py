"""norm_stats.json, by which openpi (https://github.com/Physical-Intelligence/openpi) normalizes states and actions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.dataset_folder import update_checksum
from robocache_ros.formats.lerobot.schema import NORM_STATS, OPENPI_KEYS, OPENPI_STATS
from robocache_ros.formats.parquet import column_array, read_parquet
from robocache_ros.formats.read import ACTION, STATE
from robocache_ros.formats.statistics import Stats, of_columns
from robocache_ros.untrusted_files import files_below


def write_norm_stats(dataset: Path, stats: Mapping[str, Stats]) -> None:
    """Write the statistics of the states and the actions of all rows, if the dataset has both.

    openpi finds the file by AssetsConfig(assets_dir="<dataset>/meta", asset_id="openpi").
    """
    if not all(feature in stats for feature in OPENPI_KEYS.values()):
        return
    chosen = {key: {name: stats[feature][name] for name in OPENPI_STATS} for key, feature in OPENPI_KEYS.items()}
    path = dataset / NORM_STATS
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"norm_stats": chosen}, indent=2), encoding="utf-8")


def write_chunk_norm_stats(dataset: str | Path, horizon: int, delta: Sequence[bool] = ()) -> None:
    """Replace the norm_stats.json of a LeRobot dataset by the statistics of the action chunks that openpi trains on.

    openpi's scripts/compute_norm_stats.py counts an action once for each chunk in which it occurs, and the last action
    of an episode also in place of those after it. It decodes every image for this; this function reads no image.

    Args:
        dataset: the folder of a dataset with one of the LeRobot formats.
        horizon: `action_horizon` of the model.
        delta: the mask of openpi's `DeltaActions`: of these actions, the state at the start of the chunk is subtracted.

    Errors:
        RoboCacheError: the dataset has no states or actions, or the mask does not fit.
    """
    dataset = Path(dataset)
    columns = _columns(dataset)
    episodes, state, action = columns["episode_index"][:, 0], columns[STATE], columns[ACTION]
    if horizon < 1 or len(delta) > min(state.shape[1], action.shape[1]):
        raise RoboCacheError(
            f"{printable(dataset)}: horizon {horizon} and {len(delta)} deltas do not fit {state.shape[1]} states and "
            f"{action.shape[1]} actions"
        )
    ends = np.flatnonzero(np.append(np.diff(episodes) != 0, True))
    last = ends[np.searchsorted(ends, np.arange(len(episodes)))]  # the last row of the episode of each row
    rows = np.minimum(np.arange(len(episodes))[:, None] + np.arange(horizon), last[:, None])
    chunks = []
    for k in range(action.shape[1]):  # one column at a time: a chunk is `horizon` times the data
        values = action[rows, k]
        if k < len(delta) and delta[k]:
            values -= state[:, k, None]
        chunks.append(of_columns(values.reshape(-1, 1)))
    actions = {name: [chunk[name][0] for chunk in chunks] for name in OPENPI_STATS}
    write_norm_stats(dataset, {STATE: of_columns(state), ACTION: actions})
    update_checksum(dataset, NORM_STATS)


def _columns(dataset: Path) -> dict[str, NDArray[Any]]:
    """Return the (T, D) values of the columns that openpi uses."""
    files = files_below(dataset, "data/*/*.parquet")
    if not files:
        raise RoboCacheError(f"{printable(dataset)}: has no data/*/*.parquet; give the folder of a LeRobot dataset")
    parts: dict[str, list[NDArray[Any]]] = {"episode_index": [], STATE: [], ACTION: []}
    for file in files:
        table = read_parquet(file, list(parts))
        for name, values in parts.items():
            values.append(column_array(table[name], f"{printable(file)}: {name}").reshape(len(table), -1))
    return {name: np.concatenate(values) for name, values in parts.items()}
