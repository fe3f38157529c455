"""The files of a checkpoint of LeRobot, without its weights."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

MEAN = [0.5, -1.2, 2.0, 1.2, 0.3, 0.0, 0.2, 0.1, 0.3, 0.5, 0.8]  # of the robot's joints, position and orientation
STD = [0.2, 0.15, 0.3, 0.7, 0.07, 0.07, 0.07, 0.03, 0.03, 0.03, 0.03]
STATISTICS = {
    "observation.state.mean": MEAN,
    "observation.state.std": STD,
    "observation.images.front.mean": [0.82, 0.51, 0.23],
    "observation.images.front.std": [0.07, 0.07, 0.07],
    "action.mean": MEAN[:4],
    "action.std": STD[:4],
}


def safetensors(tensors: dict[str, list[float]]) -> bytes:
    header, data = {}, b""
    for name, values in tensors.items():
        part = np.array(values, "<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def save(folder: Path, config: dict[str, Any] | None = None, statistics: dict[str, list[float]] | None = None) -> Path:
    """Write the files of an ACT policy, without its weights."""
    folder.mkdir()
    made: dict[str, Any] = {"type": "act", "n_obs_steps": 1, "device": "cpu", "chunk_size": 30, "n_action_steps": 20}
    made["input_features"] = {
        "observation.state": {"type": "STATE", "shape": [11]},
        "observation.images.camera1": {"type": "VISUAL", "shape": [3, 12, 16]},
    }
    made["output_features"] = {"action": {"type": "ACTION", "shape": [4]}}
    made["normalization_mapping"] = dict.fromkeys(("VISUAL", "STATE", "ACTION"), "MEAN_STD")
    (folder / "config.json").write_text(json.dumps(made | (config or {})))
    rename = {"observation.images.front": "observation.images.camera1"}
    for name, kind in (("pre", "normalizer"), ("post", "unnormalizer")):
        steps = [
            {"registry_name": "rename_observations_processor", "config": {"rename_map": rename}},
            {"registry_name": f"{kind}_processor", "config": {}, "state_file": f"{name}_{kind}.safetensors"},
        ]
        (folder / f"policy_{name}processor.json").write_text(json.dumps({"name": name, "steps": steps}))
        found = {**STATISTICS, **(statistics or {})}
        named = {key.replace("images.front", "images.camera1"): values for key, values in found.items()}
        (folder / f"{name}_{kind}.safetensors").write_bytes(safetensors(named))
    return folder
