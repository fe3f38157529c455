"""Runs under the zarr 2 of Diffusion Policy: reads all of a dataset as its ReplayBuffer does.

Arguments: the Zarr folder, a folder for the results, and optionally a checkout of Diffusion Policy, whose ReplayBuffer
then reads the dataset.
"""

import json
import sys
from pathlib import Path

import numpy as np
import zarr

path, out, *checkout = sys.argv[1:]
root = zarr.open(path, "r")
data = {name: root["data"][name] for name in root["data"]}
ends = root["meta"]["episode_ends"][:]
assert all(isinstance(array, zarr.Array) and array.shape[0] == ends[-1] for array in data.values())
np.savez(Path(out) / "data.npz", **{name: array[:] for name, array in data.items()})
read_by = f"zarr {zarr.__version__}"

if checkout:
    sys.path.insert(0, checkout[0])
    from diffusion_policy.common.replay_buffer import ReplayBuffer

    buffers = [
        ReplayBuffer.create_from_path(path),
        ReplayBuffer.copy_from_path(path),
        ReplayBuffer.copy_from_path(path, store=zarr.MemoryStore()),
    ]
    for buffer in buffers:
        assert set(buffer.keys()) == set(data)
        for episode in range(len(ends)):
            rows = buffer.get_episode_slice(episode)
            for name, values in buffer.get_episode(episode).items():
                assert values.tobytes() == data[name][rows].tobytes(), name
    read_by = "ReplayBuffer"

answer = {
    "read_by": read_by,
    "episode_ends": ends.tolist(),
    "task_index": root["meta"]["task_index"][:].tolist(),
    "success": root["meta"]["success"][:].tolist(),
    "tasks": root["meta"].attrs["tasks"],
    "columns": root["data"].attrs["columns"],
    "chunks": {name: array.chunks for name, array in data.items()},
    "recordings": len(root.attrs["robocache"]["recordings"]),
}
print(json.dumps(answer))  # noqa: T201
