"""The checkpoints of LeRobot as files: what `config.json` and the statistics of the processors state.

Nothing of LeRobot is imported, and no weight is read. The folder is that of `save_pretrained`, or a `checkpoints/<step>`
with `pretrained_model` in it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.read import read_object, refusing
from robocache_ros.storage.paths import as_path
from robocache_ros.untrusted_files import DatasetFile, file_below, open_file

CONFIG, PREPROCESSOR, POSTPROCESSOR = "config.json", "policy_preprocessor.json", "policy_postprocessor.json"
WEIGHTS, TRAIN_CONFIG = "model.safetensors", "train_config.json"
STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
RENAME = "rename_observations_processor"
NORMALIZERS = {PREPROCESSOR: "normalizer_processor", POSTPROCESSOR: "unnormalizer_processor"}
HORIZONS = ("chunk_size", "horizon", "action_chunk_size")  # of a chunk, by the kind of the policy
MODES = {  # the statistics of a mode
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}
MAX_HEADER, MAX_STATISTICS = 16 << 20, 64 << 20  # bytes of a safetensors file of statistics
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1"}

Float64: TypeAlias = "NDArray[np.float64]"


@dataclass(frozen=True)
class LeRobotConfig:
    """What a checkpoint of LeRobot states.

    Attributes:
        folder: of its files.
        kind: of the policy, such as act.
        inputs, outputs: shapes of the features by name, images as (C, H, W).
        n_obs: ticks that are observed.
        horizon: rows of a chunk; 1 if the policy has no chunks.
        n_action_steps: rows of a chunk that LeRobot executes.
        device: of the training.
        modes: normalisation by type of feature: STATE, VISUAL, ACTION, such as MEAN_STD.
        statistics: by feature, then by name such as mean, flat; of the preprocessor, and of `action` of the
            postprocessor. Empty if the checkpoint has none.
        renames: names of observations before the preprocessor renames them, by their names in `inputs`.
        dataset: folder of the dataset of the training, as train_config.json names it; empty if it does not.
    """

    folder: Path
    kind: str
    inputs: dict[str, tuple[int, ...]]
    outputs: dict[str, tuple[int, ...]]
    n_obs: int
    horizon: int
    n_action_steps: int
    device: str
    modes: dict[str, str]
    statistics: dict[str, dict[str, Float64]]
    renames: dict[str, str]
    dataset: str


def is_lerobot(path: str | Path) -> bool:
    """Whether a path is the folder of a checkpoint of LeRobot."""
    return _folder(Path(path)) is not None


def read_lerobot_config(path: str | Path) -> LeRobotConfig:
    """Read a checkpoint of LeRobot, without its weights.

    Errors:
        RoboCacheError: the folder has no config.json, or a file is damaged.
    """
    folder = _folder(Path(path))
    if folder is None:
        raise RoboCacheError(f"{printable(path, 80)}: no {CONFIG} in it; give the folder pretrained_model")
    config = read_object(file_below(as_path(folder), CONFIG))
    where = printable(folder / CONFIG, 80)
    with refusing(where, "not of a policy of LeRobot", "give the folder pretrained_model"):
        kind = str(config["type"])
        inputs, outputs = (_shapes(config[name]) for name in ("input_features", "output_features"))
        horizon = next((int(config[name]) for name in HORIZONS if config.get(name)), 1)
        steps = int(config.get("n_action_steps") or horizon)
        n_obs = int(config.get("n_obs_steps") or 1)
        if not (0 < horizon <= 1 << 16 and 0 < steps <= 1 << 16 and 0 < n_obs <= 1 << 16):
            raise ValueError(f"horizon {horizon}, n_action_steps {steps}, n_obs_steps {n_obs}")
        modes = {str(name): str(mode) for name, mode in dict(config.get("normalization_mapping") or {}).items()}
    renames, statistics = _processor(folder, PREPROCESSOR)
    statistics |= {name: each for name, each in _processor(folder, POSTPROCESSOR)[1].items() if name == ACTION}
    dataset = ""
    if (folder / TRAIN_CONFIG).is_file():
        stated = read_object(file_below(as_path(folder), TRAIN_CONFIG)).get("dataset")
        dataset = str(stated.get("root") or "") if isinstance(stated, dict) else ""
    device = str(config.get("device") or "")
    return LeRobotConfig(
        folder, kind, inputs, outputs, n_obs, horizon, steps, device, modes, statistics, renames, dataset
    )


def _folder(path: Path) -> Path | None:
    return next((each for each in (path, path / "pretrained_model") if (each / CONFIG).is_file()), None)


def _shapes(features: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {str(name): tuple(int(n) for n in about["shape"]) for name, about in dict(features or {}).items()}


def _processor(folder: Path, name: str) -> tuple[dict[str, str], dict[str, dict[str, Float64]]]:
    """Return what the steps of a processor rename, by the new names, and by feature the statistics they normalise by."""
    if not (folder / name).is_file():
        return {}, {}
    root = as_path(folder)
    renames: dict[str, str] = {}
    files: list[str] = []
    with refusing(printable(folder / name, 80), "not a processor of LeRobot", "get the file again"):
        for step in read_object(file_below(root, name))["steps"]:
            if step.get("registry_name") == RENAME:
                renames |= {str(new): str(old) for old, new in dict(step["config"].get("rename_map") or {}).items()}
            elif step.get("registry_name") == NORMALIZERS[name] and "state_file" in step:
                files.append(str(step["state_file"]))
    found: dict[str, dict[str, Float64]] = {}
    for file in files:
        for key, values in read_safetensors(file_below(root, file)).items():
            feature, _, statistic = key.rpartition(".")
            found.setdefault(feature, {})[statistic] = values.reshape(-1)
    return renames, found


def read_safetensors(path: DatasetFile) -> dict[str, Float64]:
    """Return the tensors of a small safetensors file in float64.

    Errors:
        RoboCacheError: it is damaged, or larger than statistics are.
    """
    with refusing(printable(path, 80), "not a safetensors file of statistics"), open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= MAX_HEADER:
            raise ValueError(f"a header of {length:,} bytes")
        header = json.loads(file.read(length))
        data = file.read(MAX_STATISTICS + 1)
        if len(data) > MAX_STATISTICS:
            raise ValueError(f"larger than {MAX_STATISTICS >> 20} MiB")
        found = {}
        for name, about in header.items():
            if name == "__metadata__" or about["dtype"] not in _DTYPES:
                continue
            (begin, end), dtype = about["data_offsets"], np.dtype(_DTYPES[about["dtype"]])
            shape = tuple(int(n) for n in about["shape"])
            if not (0 <= begin <= end <= len(data) and end - begin == math.prod(shape) * dtype.itemsize):
                raise ValueError(f"{printable(name, 40)} at {begin} to {end} of {len(data):,} bytes")
            found[str(name)] = np.frombuffer(data[begin:end], dtype).reshape(shape).astype(np.float64)
        return found
