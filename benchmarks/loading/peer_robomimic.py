"""Batches of robomimic's own SequenceDataset in a DataLoader. Needs robomimic; run by the benchmark."""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any

BATCH = 100


def main() -> None:
    """Measure; the argument is a JSON object: path, keys (of observations), workers."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    torch: Any = import_module("torch")
    dataset_module: Any = import_module("robomimic.utils.dataset")
    import_module("robomimic.utils.obs_utils").initialize_obs_utils_with_obs_specs({"obs": {"low_dim": wanted["keys"]}})
    torch.set_num_threads(1)
    found = {}
    for mode in ("all", "low_dim"):
        dataset = dataset_module.SequenceDataset(
            wanted["path"],
            obs_keys=wanted["keys"],
            dataset_keys=["actions", "rewards", "dones"],
            frame_stack=1,
            seq_length=1,
            load_next_obs=False,
            hdf5_cache_mode=mode,
        )
        workers = wanted["workers"]
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0, drop_last=True
        )
        for _ in loader:  # starts the workers
            pass
        started = time.perf_counter()
        count = sum(1 for _ in loader)
        found[f"SequenceDataset, cache {mode}, {workers} workers"] = count / (time.perf_counter() - started)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
