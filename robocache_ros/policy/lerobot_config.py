"""The checkpoints of LeRobot as files: what config.json, train_config.json and the processors state.

Nothing of LeRobot is imported, and no weight is read. Known are the files of LeRobot 0.4.4.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.read import refusing
from robocache_ros.storage.paths import as_path
from robocache_ros.untrusted_files import DatasetFile, file_below, open_file, read_text

CONFIG, TRAIN_CONFIG = "config.json", "train_config.json"
PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
EMPTY_CAMERA = "observation.images.empty_camera_"  # filled in by the policy
RENAME = "rename_observations_processor"
NORMALIZERS = {PREPROCESSOR: "normalizer_processor", POSTPROCESSOR: "unnormalizer_processor"}
# Rows of a chunk by type of policy; others plan no chunks.
HORIZONS = {
    **dict.fromkeys(("act", "pi0", "pi05", "smolvla", "groot", "xvla", "wall_x"), "chunk_size"),
    **dict.fromkeys(("pi0_fast", "diffusion"), "n_action_steps"),
    "vqbet": "action_chunk_size",
}
MODES = {  # the statistics that a mode of normalisation uses
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}
MAX_SIZE = 1 << 20  # of a dimension, a horizon
MAX_JSON_BYTES = 1 << 20
MAX_HEADER, MAX_STATISTICS = 16 << 20, 64 << 20  # bytes of a safetensors file of statistics
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1"}

Float64: TypeAlias = "NDArray[np.float64]"


@dataclass(frozen=True)
class LeRobotConfig:
    """What the files of a checkpoint state. Features have the names of the dataset, before the policy renames them.

    Attributes:
        type: of the policy, such as `act`.
        inputs: shapes of the features that it needs, images as (C, H, W).
        action: columns of the action.
        horizon: rows of a chunk; 0: not known.
        observed_ticks: ticks of an observation.
        device: of the training.
        modes: normalisation by feature, such as MEAN_STD.
        statistics: by feature and name, such as mean, flat.
        dataset: folder of the dataset of the training; empty if train_config.json names none.
    """

    type: str
    inputs: dict[str, tuple[int, ...]]
    action: int
    horizon: int
    observed_ticks: int
    device: str
    modes: dict[str, str]
    statistics: dict[str, dict[str, Float64]]
    dataset: str

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras, without `observation.images.`."""
        return tuple(key.removeprefix(IMAGES) for key in self.inputs if key.startswith(IMAGES))


def read_lerobot_config(folder: str | Path) -> LeRobotConfig:
    """Read the files of a checkpoint, such as the folder `checkpoints/last/pretrained_model` of `lerobot-train`.

    Errors:
        RoboCacheError: config.json is missing, or a file is damaged.
    """
    root = Path(folder)
    if not (root / CONFIG).is_file() and (root / "pretrained_model" / CONFIG).is_file():
        raise RoboCacheError(f"{printable(root, 60)}: not the policy; give its folder pretrained_model")
    config = _object(root, CONFIG)
    with refusing(printable(root / CONFIG, 80), "not a policy of LeRobot", "give the folder pretrained_model"):
        kind = str(config["type"])
        shapes = {str(key): _shape(about) for key, about in config["input_features"].items()}
        (action,) = _shape(config["output_features"][ACTION])
        horizon, observed = int(config.get(HORIZONS.get(kind, "")) or 0), int(config.get("n_obs_steps", 1))
        if not (0 <= horizon <= MAX_SIZE and 0 < observed <= MAX_SIZE):
            raise ValueError(f"a horizon of {horizon}, {observed} observed ticks")
        by_type = {str(name): str(mode) for name, mode in dict(config.get("normalization_mapping") or {}).items()}
        types = {str(key): str(about["type"]) for key, about in config["input_features"].items()}
    renamed, statistics = _processor(root, PREPROCESSOR)
    outputs = _processor(root, POSTPROCESSOR)[1]
    statistics.update({ACTION: outputs[ACTION]} if ACTION in outputs else {})
    modes = {renamed.get(key, key): by_type.get(type_, "IDENTITY") for key, type_ in types.items()}
    return LeRobotConfig(
        kind,
        {renamed.get(key, key): shape for key, shape in shapes.items() if not key.startswith(EMPTY_CAMERA)},
        action,
        horizon,
        observed,
        str(config.get("device") or ""),
        {**modes, ACTION: by_type.get("ACTION", "IDENTITY")},
        {renamed.get(key, key): each for key, each in statistics.items()},
        _dataset(root),
    )


def _object(root: Path, name: str) -> dict[str, Any]:
    """Return the object in a JSON file of a checkpoint."""
    path = file_below(as_path(root), name) if (root / name).exists() else root / name
    advice = "give the folder of a LeRobot policy"
    text = read_text(path, advice, MAX_JSON_BYTES)
    with refusing(printable(path, 80), "not a JSON object", advice, (ValueError, RecursionError)):
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__}")
    return found


def _shape(feature: Mapping[str, Any]) -> tuple[int, ...]:
    shape = tuple(int(each) for each in feature["shape"])
    if not all(0 < each <= MAX_SIZE for each in shape):
        raise ValueError(f"a shape {shape}")
    return shape


def _dataset(root: Path) -> str:
    if not (root / TRAIN_CONFIG).is_file():
        return ""
    stated = _object(root, TRAIN_CONFIG).get("dataset")
    return str(stated.get("root") or "") if isinstance(stated, dict) else ""


def _processor(root: Path, name: str) -> tuple[dict[str, str], dict[str, dict[str, Float64]]]:
    """Return the names before a processor renames them, by those after, and by feature what it normalises by."""
    renamed: dict[str, str] = {}
    files: list[str] = []
    if not (root / name).is_file():
        return {}, {}
    with refusing(printable(root / name, 80), "not a processor of LeRobot", "get the file again"):
        for step in _object(root, name)["steps"]:
            if step.get("registry_name") == RENAME:
                renamed |= {str(new): str(old) for old, new in dict(step["config"].get("rename_map") or {}).items()}
            elif step.get("registry_name") == NORMALIZERS[name] and "state_file" in step:
                files.append(str(step["state_file"]))
    found: dict[str, dict[str, Float64]] = {}
    for file in files:
        for key, values in read_safetensors(file_below(as_path(root), file)).items():
            feature, _, statistic = key.rpartition(".")
            found.setdefault(feature, {})[statistic] = values.reshape(-1)
    return renamed, found


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
