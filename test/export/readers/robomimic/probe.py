"""Runs under robomimic's own Python: reads all of a dataset with SequenceDataset, and checks it with get_dataset_info.

Arguments: the HDF5 file, a folder for the results, and the observation keys by modality as JSON.
"""

import contextlib
import json
import runpy
import sys
from pathlib import Path

import h5py
import numpy as np
import torch

# torchvision's compiled operators do not go with a CPU-only torch: declare the two it registers fakes for.
library = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import robomimic.utils.file_utils as file_utils  # noqa: E402
import robomimic.utils.obs_utils as obs_utils  # noqa: E402
from robomimic.utils.dataset import SequenceDataset  # noqa: E402

path, out, modalities = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
obs_utils.initialize_obs_utils_with_obs_specs({"obs": modalities})
keys = [key for names in modalities.values() for key in names]


def read(**options):
    """SequenceDataset with its own defaults, and what robomimic's training sets."""
    transitions = ("actions", "rewards", "dones")
    with contextlib.redirect_stdout(sys.stderr):
        return SequenceDataset(path, keys, transitions, **options)


def flat(item):
    """An item as arrays by name, such as obs/front."""
    nested = {f"{group}/{key}": item[group][key] for group in ("obs", "next_obs") for key in item[group]}
    return nested | {key: item[key] for key in ("actions", "rewards", "dones")}


plain = read()
items = [flat(plain[index]) for index in range(len(plain))]
np.savez(out / "items.npz", **{name: np.stack([item[name][0] for item in items]) for name in items[0]})
stacked = read(frame_stack=2, seq_length=4, hdf5_cache_mode="low_dim")
np.savez(out / "sequence.npz", **flat(stacked[3]))

with h5py.File(path) as file:
    demos = [file["data"][demo] for demo in plain.demos]
    for group in ("robocache", "action_dict"):
        columns = {name: [demo[group][name][:] for demo in demos] for name in demos[0].get(group, ())}
        np.savez(out / f"{group}.npz", **{name: np.concatenate(parts) for name, parts in columns.items()})
    scaling = {name: file["data"].attrs[f"action_{name}"].tolist() for name in ("scale", "offset")}
    languages = [json.loads(demo.attrs["ep_meta"])["lang"] for demo in demos]
    masks = {name: file_utils.get_demos_for_filter_key(path, name) for name in file["mask"]}
    recordings = len(json.loads(file["robocache/provenance"][()])["recordings"])

if plain[0]["actions"].size:
    sys.argv = ["get_dataset_info", "--dataset", path]
    with contextlib.redirect_stdout(sys.stderr):
        runpy.run_module("robomimic.scripts.get_dataset_info", run_name="__main__")

for name, demos in masks.items():
    assert read(filter_by_attribute=name).demos == demos
shapes = file_utils.get_shape_metadata_from_dataset(path, all_obs_keys=keys)
answer = {
    "demos": plain.demos,
    "lengths": [int(plain._demo_id_to_demo_length[demo]) for demo in plain.demos],
    "masks": masks,
    "shapes": {key: list(shape) for key, shape in shapes["all_shapes"].items()},
    "ac_dim": shapes["ac_dim"],
    "scaling": scaling,
    "languages": languages,
    "recordings": recordings,
    "env": file_utils.get_env_metadata_from_dataset(path),
}
print(json.dumps(answer))  # noqa: T201
