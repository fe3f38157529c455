"""Files of exported WebDataset shards, and the members of a sample in them.

train-000000.tar   episodes, each complete in one file
robocache.json     the provenance
stats.json         statistics of the fields
dataset.json       the shards, the episodes and the fields, written last

A sample consists of the members <episode>_<tick>.<field>: state.npy, action.npy, <image>.jpg or .png, <voxels>.npz,
<window>.npy, <window>.age_ms.npy and meta.json.
"""

from __future__ import annotations

INDEX, STATS = "dataset.json", "stats.json"
STATE, ACTION, META = "state.npy", "action.npy", "meta.json"
ROLES = {STATE: "observation", ACTION: "action"}  # of the streams in a field
EXTENSIONS = {"jpeg": "jpg", "png": "png"}  # by encoding
ARRAY = "array.npy"  # in the npz of voxels and depth images
MEMBER_BYTES = 1 << 30


def sample_key(episode: int, tick: int) -> str:
    """Return what the members of a sample have before their field."""
    return f"{episode:06d}_{tick:06d}"


def age_field(window: str) -> str:
    """Return the field of the ages of the samples of a window."""
    return f"{window}.age_ms.npy"
