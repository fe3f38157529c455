"""Files and features of RLDS datasets, as TFDS names them, and those that this package adds."""

from __future__ import annotations

from robocache_ros.formats.schema import TICK_COLUMNS
from robocache_ros.untrusted_files import filled

INFO, FEATURES, STATISTICS = "dataset_info.json", "features.json", "dataset_statistics.json"
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
STEPS, OBSERVATION = "steps/", "steps/observation/"
STATE, ACTION, REWARD = f"{OBSERVATION}state", f"{STEPS}action", f"{STEPS}reward"
ROLES = {STATE: "observation", ACTION: "action"}  # of the streams in a feature
OWN = f"{STEPS}robocache/"  # what this package adds to a step
TICK, STAMP, VALID, AGE = (OWN + name for name in TICK_COLUMNS)
SAMPLE_AGES = f"{OWN}sample_age_ms/"  # and the name of a window
EPISODE_INDEX, RECORDING = "episode_metadata/episode_index", "episode_metadata/file_path"
SUCCESS = "episode_metadata/success"  # 1 yes, 0 no, -1 not known
LANGUAGE = f"{STEPS}language_instruction"


def file_name(template: object, dataset: object, split: object, kind: object, index: int, count: int) -> str:
    """Return the name of a file of a split, by the template in dataset_info.json; None: that of TFDS.

    Errors:
        KeyError: the template has another name.
    """
    return filled(
        template or TEMPLATE,
        DATASET=dataset,
        SPLIT=split,
        FILEFORMAT=kind,
        SHARD_INDEX=f"{index:05d}",
        NUM_SHARDS=f"{count:05d}",
        SHARD_X_OF_Y=f"{index:05d}-of-{count:05d}",
    )
