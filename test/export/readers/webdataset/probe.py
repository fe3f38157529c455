"""Runs under webdataset: reads shards with its decoders, and writes the samples of each episode to a file of arrays."""

import json
import os
import sys
from itertools import groupby

import numpy as np
import webdataset

samples = webdataset.WebDataset(sys.argv[1:], shardshuffle=False).decode("rgb8")
episodes = []
for episode, group in groupby(samples, key=lambda sample: sample["meta.json"]["episode"]):
    rows = list(group)
    fields = [name for name in rows[0] if not name.startswith("__") and name != "meta.json"]
    values = {name: [row[name]["array"] if name.endswith("npz") else row[name] for row in rows] for name in fields}
    file = os.path.abspath(f"episode-{episode}.npz")
    np.savez(file, **{name: np.stack(rows_of) for name, rows_of in values.items()})
    reported = {"keys": [row["__key__"] for row in rows], "meta": [row["meta.json"] for row in rows]}
    episodes.append({"file": file, **reported})

print(json.dumps({"episodes": episodes}))  # noqa: T201
